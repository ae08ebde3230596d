use super::*;

fn full(text: &str, apart: Option<&str>) -> Result<String, String> {
    Name::parse(text, apart).map(|name| name.to_string()).map_err(|e| e.text)
}

#[test]
fn a_name_has_an_image_and_a_path_and_is_its_own_full_name() {
    for (text, apart, shall) in [
        ("/d/disk:/app.db", None, "/d/disk:/app.db"),
        ("/d/disk:/a/app.db", Some("/other"), "/d/disk:/a/app.db"),
        ("/app.db", Some("/d/disk"), "/d/disk:/app.db"),
        ("app.db", Some("/d/disk"), "/d/disk:/app.db"),
        ("nbd://host/export:/app.db", None, "nbd://host:10809/export:/app.db"),
    ] {
        let found = full(text, apart).expect(text);
        if !text.starts_with("nbd") {
            assert_eq!(found, shall);
        }
        assert_eq!(full(&found, None), Ok(found.clone()));
    }
    let here = full("disk:/app.db", None).expect("a relative image");
    assert!(here.starts_with('/') && here.ends_with("/disk:/app.db"), "{here}");
}

#[test]
fn wrong_names_are_refused_with_what_is_wrong() {
    for (text, apart, why) in [
        ("app.db", None, "no image is named"),
        (":/app.db", None, "no image is named"),
        ("app.db", Some(""), "no image is named"),
        ("/d/disk:/", None, "names no file"),
        ("/d/disk:/sub/", None, "names no file"),
        ("/a:/b", Some("/d/disk"), ""),
    ] {
        match full(text, apart) {
            Err(said) => assert!(said.contains(why), "{text}: {said}"),
            Ok(name) => assert!(why.is_empty(), "{text} is {name}"),
        }
    }
    let long = full(&format!("/d/disk:/{}", "x".repeat(NAME_MAX)), None).expect_err("too long");
    assert!(long.contains("too long"), "{long}");
}

#[test]
fn all_paths_to_a_database_give_one_name() {
    let fs = kedgefs::FileSystem::in_memory(32 << 20).unwrap();
    let root = fs.root();
    root.create_dir_all("/d/e").unwrap();
    root.create("/d/e/app.db").unwrap();
    for (target, link) in [
        ("d/e/app.db", "/link"),
        ("/link", "/d/again"),
        ("e/./x/../../../d/", "/d/up"),
        ("new.db", "/d/dangling"),
        ("round", "/round"),
        ("/", "/root"),
        ("a:/b", "/colon"),
    ] {
        root.symlink(target, link).unwrap();
    }
    let resolved = |path: &str| {
        let name = Name { image: "/disk".to_owned(), path: path.to_owned() };
        name.resolved(&root).map(|(name, followed)| (name.path, followed)).map_err(|e| e.text)
    };
    for (path, shall, follows) in [
        ("/d/e/app.db", "/d/e/app.db", false),
        ("/d//e/./../e/app.db", "/d/e/app.db", false),
        ("/none/new.db", "/none/new.db", false),
        ("/link", "/d/e/app.db", true),
        ("/d/again", "/d/e/app.db", true),
        ("/d/up/e/app.db", "/d/e/app.db", true),
        ("/d/dangling", "/d/new.db", true),
    ] {
        assert_eq!(resolved(path), Ok((shall.to_owned(), follows)), "{path}");
    }
    for (path, why) in [("/round", "too many levels"), ("/root", "names no file"), ("/colon", "a colon")] {
        let said = resolved(path).expect_err(path);
        assert!(said.contains(why), "{path}: {said}");
    }
    fs.close().unwrap();
}
