use super::*;
use kedge_base::{BLOCK_SIZE, BlockNo, Epoch, Generation, Ino, Lsn, Timespec};
use kedge_format::ItemKind;
use kedge_format::node::NodeMut;
use kedge_format::superblock::{CheckpointState, Geometry};
use std::os::unix::fs::FileExt;

const SIZE: u64 = 16 << 20;
const GENERATION: Generation = Generation(2);

fn superblock(root_level: u8) -> Superblock {
    let geometry =
        Geometry::plan(SIZE, 1 << 20, "", uuid::Uuid::from_u128(1), [1; 16], Timespec::default()).unwrap();
    let checkpoint = CheckpointState {
        generation: GENERATION,
        root: geometry.data_start,
        root_generation: GENERATION,
        root_level,
        checkpoint_lsn: Lsn(0),
        tail_lsn: Lsn(0),
        epoch: Epoch(1),
        next_ino: Ino(9),
        inodes: 1,
        free_blocks: 1,
        nodes: 3,
        clean: true,
        written_sec: 0,
        losses: None,
        trees: None,
    };
    Superblock { geometry, checkpoint }
}

fn key(ino: u64) -> Key {
    Key::new(Ino(ino), ItemKind::Symlink, 0)
}

/// Item keys 10, 20, … 60 in two leaves under a root; `swap` puts the leaves in the wrong order.
fn image(swap: bool) -> (Image, Superblock) {
    let sb = superblock(1);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(SIZE).unwrap();
    let root = sb.checkpoint.root;
    let leaf_at = |i: u64| BlockNo(root.0 + 4 * (i + 1));
    let write = |addr: BlockNo, level: u8, items: &[(Key, Vec<u8>)]| {
        let mut bytes = vec![0; NODE_SIZE];
        let mut node = NodeMut::init(&mut bytes, &sb.geometry.uuid, addr, GENERATION, level);
        for (key, value) in items {
            node.append(key, value);
        }
        node.seal(&sb.geometry.log_secret);
        file.as_file().write_all_at(&bytes, addr.0 * BLOCK_SIZE as u64).unwrap();
    };
    let leaf = |inos: [u64; 3]| inos.map(|ino| (key(ino), ino.to_string().into_bytes()));
    write(leaf_at(0), 0, &leaf([10, 20, 30]));
    write(leaf_at(1), 0, &leaf([40, 50, 60]));
    let child = |i| Child { addr: leaf_at(i), generation: GENERATION }.encode().to_vec();
    let order = if swap { [1, 0] } else { [0, 1] };
    write(root, 1, &[(Key::MIN, child(order[0])), (key(40), child(order[1]))]);
    (Image::open(file.path()).unwrap(), sb)
}

fn inos(swap: bool, keys: RangeInclusive<Key>) -> Result<Vec<u64>> {
    let (image, sb) = image(swap);
    let mut seen = Vec::new();
    walk(&image, &sb, &keys, &mut |key, value| {
        assert_eq!(value, key.ino.to_string().as_bytes());
        seen.push(key.ino);
        Ok(())
    })?;
    Ok(seen)
}

#[test]
fn a_walk_shows_the_items_of_the_range_in_order() {
    assert_eq!(inos(false, Key::MIN..=Key::MAX).unwrap(), [10, 20, 30, 40, 50, 60]);
    assert_eq!(inos(false, key(20)..=key(50)).unwrap(), [20, 30, 40, 50]);
    assert_eq!(inos(false, key(31)..=key(39)).unwrap(), [0; 0]);
    assert_eq!(inos(false, key(60)..=Key::MAX).unwrap(), [60]);
}

#[test]
fn a_node_in_the_wrong_place_ends_the_walk() {
    let e = inos(true, Key::MIN..=Key::MAX).unwrap_err().to_string();
    assert!(e.contains("does not begin with the key"), "{e}");
}

#[test]
fn a_root_that_was_never_written_is_named() {
    let sb = superblock(0);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(SIZE).unwrap();
    let image = Image::open(file.path()).unwrap();
    let e = walk(&image, &sb, &(Key::MIN..=Key::MAX), &mut |_, _| Ok(())).unwrap_err();
    let e = format!("{e:#}");
    assert!(e.contains(&format!("tree node at block {}", sb.checkpoint.root)), "{e}");
}
