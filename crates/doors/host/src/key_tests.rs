use super::*;
use kedge_device::MemDevice;
use kedge_device::crypt::CRYPT_AREA;

#[test]
fn bad_key_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let said = |path: &Path| format!("{:#}", read(path).unwrap_err());
    assert!(said(&path).contains("open the key file") && said(&path).contains("key"));
    std::fs::write(&path, b"").unwrap();
    assert!(said(&path).ends_with("is empty"));
    std::fs::write(&path, vec![0; KEY_FILE_MAX as usize + 1]).unwrap();
    assert!(said(&path).contains("more than 1048576 bytes"));
    std::fs::write(&path, b"pass\n").unwrap();
    assert_eq!(read(&path).unwrap().bytes(), b"pass\n", "to the last byte");
}

/// A formerly encrypted image may still have the copy of its old header, which must be ignored.
#[test]
fn an_image_is_encrypted_if_its_first_block_says_so() {
    let device = Arc::new(MemDevice::new(CRYPT_AREA + (32 << 20)));
    assert!(!is_encrypted(&*device).unwrap());
    let secret = Secret::new(b"key".to_vec());
    let cost = Cost { memory_kib: 8, passes: 1, lanes: 1 };
    CryptDevice::format(device.clone(), &secret, cost).unwrap();
    assert!(is_encrypted(&*device).unwrap());
    let mut block = IoBuf::zeroed(1);
    device.write(0, &block, true).unwrap();
    assert!(is_encrypted(&*device).unwrap(), "the second copy of the header is valid");
    block.as_mut_bytes()[..8].copy_from_slice(b"KEDGEFS\0");
    device.write(0, &block, true).unwrap();
    assert!(!is_encrypted(&*device).unwrap());
}
