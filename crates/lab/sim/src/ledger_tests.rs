use super::*;

fn written(file: &mut File, from: u64, len: u64) -> Vec<u8> {
    let bytes = file.begin_write(from, len);
    file.wrote(len);
    bytes
}

#[test]
fn bytes_say_whose_they_are() {
    let mut file = File::new(7);
    let mut bytes = vec![0; 64];
    bytes.extend(file.begin_write(800, 512));
    bytes.extend(File::new(255).begin_write(0, 8));
    assert_eq!(owners(&bytes), BTreeSet::from([7, 255]));
    assert_eq!(owners(&[0xee; 4096]), BTreeSet::new());
}

#[test]
fn what_was_synced_must_be_there_and_the_rest_may() {
    let mut file = File::new(1);
    let first = written(&mut file, 0, 64);
    file.check(&[]).unwrap();
    file.check(&first[..16]).unwrap();
    file.check(&[0; 64]).unwrap();
    file.synced(file.mark());
    file.check(&[]).unwrap_err();
    file.check(&[0; 64]).unwrap_err();
    file.check(&first).unwrap();
    let second = written(&mut file, 8, 16);
    let mut mixed = first.clone();
    mixed[8..16].copy_from_slice(&second[..8]);
    file.check(&mixed).unwrap();
    file.check(&first).unwrap();
    file.all_settled().check(&mixed).unwrap_err();
    mixed[16..24].copy_from_slice(&second[8..]);
    file.all_settled().check(&mixed).unwrap();
    file.all_settled().check(&first).unwrap_err();
    // Bytes that no write made, and bytes of another offset or file.
    mixed[32] ^= 1;
    file.check(&mixed).unwrap_err();
    file.check(&[&first[8..], &first[..8]].concat()).unwrap_err();
    file.check(&File::new(2).begin_write(0, 64)).unwrap_err();
}

#[test]
fn a_failed_write_may_be_there_until_something_covers_it() {
    let mut file = File::new(1);
    let first = written(&mut file, 0, 64);
    let failed = file.begin_write(0, 128);
    assert_eq!(file.mark(), 1, "it may be under way still");
    let third = written(&mut file, 0, 8);
    assert_eq!(file.mark(), 3);
    file.synced(3);
    let tail = [&third, &failed[8..]].concat();
    for good in [[&third, &first[8..]].concat(), tail.clone(), tail[..80].to_vec()] {
        file.check(&good).unwrap();
    }
    file.check(&failed).unwrap_err();
    file.check(&first).unwrap_err();
    file.check(&third).unwrap_err();
}

#[test]
fn a_short_answer_takes_the_rest_back() {
    let mut file = File::new(1);
    let bytes = file.begin_write(0, 64);
    file.wrote(24);
    file.synced(file.mark());
    file.check(&bytes[..24]).unwrap();
    file.check(&bytes).unwrap_err();
    assert_eq!(file.size(), 24);
}

#[test]
fn a_truncate_settles_size_and_zeros() {
    let mut file = File::new(1);
    let first = written(&mut file, 0, 64);
    file.synced(file.mark());
    file.begin_truncate(16);
    file.truncated();
    file.check(&first).unwrap();
    file.check(&first[..16]).unwrap();
    file.synced(file.mark());
    file.check(&first).unwrap_err();
    let last = written(&mut file, 32, 8);
    let grown = [&first[..16], &[0; 16], &last].concat();
    file.check(&grown).unwrap();
    file.all_settled().check(&grown).unwrap();
    // Truncated bytes never reappear.
    file.check(&[&first[..32], &last].concat()).unwrap_err();
    let earlier = File { settled: 1, ..file.clone() };
    assert_eq!(earlier.settled_of(&file).settled, 1);
}
