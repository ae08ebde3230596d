use crate::damage_tests::run;
use crate::test_image::Image;
use crate::{FindingKind, Report};
use kedge_base::Ino;
use kedge_format::FileKind;

fn paths(report: &Report, kind: FindingKind) -> Vec<&str> {
    let found = report.findings.iter().filter(|f| f.kind == kind);
    found.flat_map(|f| f.paths.iter().map(String::as_str)).collect()
}

#[test]
fn an_inode_is_named_by_all_its_links() {
    let mut image = Image::sample();
    image.core(10, |c| c.nlink = 3);
    image.core(150, |c| c.blocks = 9);
    image.core(3, |c| c.size += 1);
    let report = run(&image.build());
    assert_eq!(paths(&report, FindingKind::NlinkWrong), ["/file", "/dir/link"], "{report}");
    assert_eq!(paths(&report, FindingKind::BlocksWrong), ["/dir/sub/many50"], "{report}");
    assert_eq!(paths(&report, FindingKind::DirSize), ["/dir/sub"], "{report}");
    assert!(report.to_string().contains("there are 2; concerns /file, /dir/link\n"), "{report}");
}

#[test]
fn a_lost_node_names_whose_items_it_held() {
    let built = Image::sample().build();
    // The last leaf has inodes of files, whose names are in an earlier leaf.
    let leaf = *built.nodes[0].last().unwrap();
    built.device.corrupt(leaf.byte_offset() + 2000, |bytes| bytes[0] ^= 4);
    let report = run(&built);
    let finding = report.findings.iter().find(|f| f.kind == FindingKind::NodeBad).unwrap();
    assert!(finding.paths.contains(&"/dir/sub/many199".to_owned()), "{report}");
    assert!(finding.paths.iter().all(|p| p.starts_with("/dir/sub/many19")), "{report}");

    // The first leaf has the root directory and its entries.
    let built = Image::sample().build();
    built.device.corrupt(built.nodes[0][0].byte_offset() + 2000, |bytes| bytes[0] ^= 4);
    let report = run(&built);
    let finding = report.findings.iter().find(|f| f.kind == FindingKind::NodeBad).unwrap();
    assert_eq!(finding.paths[0], "/", "{report}");
}

#[test]
fn a_long_list_is_cut_and_counted() {
    let built = Image::sample().build();
    // All inodes from the middle on are below one inner node.
    let inner = *built.nodes[1].last().unwrap();
    built.device.corrupt(inner.byte_offset() + 2000, |bytes| bytes[0] ^= 4);
    let report = run(&built);
    let finding = report.findings.iter().find(|f| f.kind == FindingKind::NodeBad).unwrap();
    assert_eq!(finding.paths.len(), super::PATHS_MAX, "{report}");
    assert!(finding.more_paths > 10, "{report}");
    assert!(report.to_string().contains(&format!(" and {} more\n", finding.more_paths)), "{report}");
}

#[test]
fn a_path_that_does_not_reach_the_root_says_so() {
    let mut image = Image::sample();
    let circle = [(30, 31), (31, 30)];
    circle.iter().for_each(|&(dir, parent)| image.directory(dir, parent));
    for (dir, parent) in circle {
        image.name(parent, &format!("in{parent}"), dir, FileKind::Directory);
    }
    image.file(40, 1, &[]);
    image.core(40, |c| c.nlink = 9);
    image.name(30, "file", 40, FileKind::Regular);
    let report = run(&image.build());
    assert_eq!(paths(&report, FindingKind::NlinkWrong), ["(inode 31)/in31/file"], "{report}");
    assert_eq!(paths(&report, FindingKind::DirCycle).len(), 1, "{report}");

    let mut image = Image::sample();
    image.file(41, 1, &[]);
    image.core(41, |c| c.parent = Ino(1));
    let report = run(&image.build());
    assert_eq!(report.count(FindingKind::InodeUnnamed), 1, "{report}");
    assert!(paths(&report, FindingKind::InodeUnnamed).is_empty(), "{report}");
}
