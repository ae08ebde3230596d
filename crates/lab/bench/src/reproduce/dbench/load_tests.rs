use super::*;

/// Each operation once, in the format of dbench's own file.
const ALL: &str = r#"# a comment

Deltree "\clients\client1" NT_STATUS_OK
Mkdir "\clients" NT_STATUS_OK
NTCreateX "\clients\client1" 0x1 0x2 16385 NT_STATUS_OK
Close 16385 NT_STATUS_OK
NTCreateX "\clients\client1\A B.TXT" 0x40 0x1 9935 NT_STATUS_OBJECT_NAME_NOT_FOUND
NTCreateX "\clients\client1\A B.TXT" 0x40 0x2 9938 NT_STATUS_OK
NTCreateX "\clients\client1\C" 0x40 0x5 9939 NT_STATUS_OK
WriteX 9938 65536 512 512 NT_STATUS_OK
ReadX 9938 0 512 500 NT_STATUS_OK
LockX 9938 2147483538 1 NT_STATUS_OK
UnlockX 9938 2147483538 1 NT_STATUS_OK
Flush 9938 NT_STATUS_OK
SET_FILE_INFORMATION 9939 1004 NT_STATUS_OK
QUERY_FILE_INFORMATION 9939 258 NT_STATUS_OK
QUERY_FS_INFORMATION 259 NT_STATUS_OK
QUERY_PATH_INFORMATION "\clients\client1\D" 1004 NT_STATUS_OBJECT_NAME_NOT_FOUND
FIND_FIRST "\clients\client1\*" 260 1366 11 NT_STATUS_OK
Close 9938 NT_STATUS_OK
Close 9939 0x00000000
Rename "\clients\client1\A B.TXT" "\clients\client1\C" NT_STATUS_OK
Unlink "\clients\client1\C" 0x6 NT_STATUS_OK
"#;

#[test]
fn each_operation() {
    let load = Load::parse(ALL).unwrap();
    let create =
        |path, directory, create, truncate, file| Op::Create { path, directory, create, truncate, file };
    let range = Range { file: 0, offset: 2_147_483_538, size: 1 };
    let ops = [
        Op::Deltree(0),
        Op::Mkdir(1),
        create(0, true, true, false, Some(0)),
        Op::Close(0),
        create(2, false, false, false, None),
        create(2, false, true, false, Some(0)),
        create(3, false, true, true, Some(1)),
        Op::Write(Piece { file: 0, offset: 65536, size: 512, done: 512 }),
        Op::Read(Piece { file: 0, offset: 0, size: 512, done: 500 }),
        Op::Lock(range),
        Op::Unlock(range),
        Op::Flush(0),
        Op::SetFile(1),
        Op::QueryFile(1),
        Op::QueryFs,
        Op::QueryPath(4),
        Op::Find(5, 1366),
        Op::Close(0),
        Op::Close(1),
        Op::Rename(2, 3),
        Op::Unlink(3),
    ];
    let read: Vec<Op> = load.steps.iter().map(|step| step.op).collect();
    assert_eq!(read, ops);
    assert_eq!((load.steps[0].line, load.steps[20].line), (3, 23));
    let fails: Vec<usize> = load.steps.iter().filter(|step| !step.succeeds).map(|step| step.line).collect();
    assert_eq!(fails, [7, 18]);
    let paths = ["clients/client7", "clients", "clients/client7/A B.TXT", "clients/client7/C"];
    assert_eq!(load.paths(7)[..4], paths);
    let mut rows: Vec<usize> = ops.iter().map(|op| op.row()).collect();
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows, (0..OPERATIONS.len()).collect::<Vec<_>>(), "each operation has a row of its own");
    let named = |op: Op| OPERATIONS[op.row()];
    assert_eq!((named(ops[7]), named(ops[12]), named(ops[19])), ("WriteX", "Sfileinfo", "Rename"));
}

#[test]
fn bad_lines_are_named() {
    let open = "NTCreateX \"\\c\" 0x40 0x2 5 NT_STATUS_OK\n";
    let many: String = (1..=201).map(|i| format!("NTCreateX \"\\c\" 0 2 {i} NT_STATUS_OK\n")).collect();
    let cases = [
        (String::new(), "no operations"),
        ("Fsck 1 NT_STATUS_OK".into(), "line 1: 'Fsck 1 NT_STATUS_OK': unknown operation Fsck"),
        ("\n# fine\nFlush 5 NT_STATUS_OK".into(), "line 3: 'Flush 5 NT_STATUS_OK': the handle 5 is not open"),
        ("Flush".into(), "line 1: 'Flush': no operation with a status"),
        ("Flush 5".into(), "the status '5'"),
        (format!("{open}Flush NT_STATUS_OK"), "line 2: 'Flush NT_STATUS_OK': no handle"),
        (format!("{open}Flush -5 NT_STATUS_OK"), "the handle '-5' is no number"),
        (format!("{open}{open}"), "the handle 5 is open already"),
        (open.into(), "line 1: nothing closes the handle 5"),
        (format!("{open}Close 5 NT_STATUS_OK\nClose 5 NT_STATUS_OK"), "line 3"),
        (format!("{open}WriteX 5 0 2000000 2000000 NT_STATUS_OK"), "2000000 of 2000000 bytes"),
        (format!("{open}ReadX 5 0 10 11 NT_STATUS_OK"), "11 of 10 bytes"),
        (format!("{open}ReadX 5 4294967296 1 1 NT_STATUS_OK"), "the offset '4294967296'"),
        (format!("{open}ReadX 5 0 1 1 NT_STATUS_LOCK_CONFLICT"), "ReadX cannot be expected to fail"),
        ("Mkdir \"\\c NT_STATUS_OK".into(), "a quote does not end"),
        ("Mkdir \"c\" NT_STATUS_OK".into(), "'c' is not absolute"),
        ("Mkdir \"\\c\\..\\d\" NT_STATUS_OK".into(), "the path"),
        ("NTCreateX \"\\c\" 0x40 0x3 5 NT_STATUS_OK".into(), "the disposition 3"),
        ("NTCreateX \"\\c\" 0xyz 0x2 5 NT_STATUS_OK".into(), "the options '0xyz'"),
        ("0.12 Flush 5 NT_STATUS_OK".into(), "loads with times"),
        (many, "line 201"),
    ];
    for (text, words) in cases {
        let error = format!("{:#}", Load::parse(&text).unwrap_err());
        assert!(error.contains(words), "{words} in {error}");
    }
}

#[test]
fn a_missing_file_names_the_package() {
    let error = format!("{:#}", Load::read(Path::new("/gone/client.txt")).unwrap_err());
    assert!(error.contains("/gone/client.txt") && error.contains("(Debian package dbench)"), "{error}");
}
