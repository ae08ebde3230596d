use super::*;

#[test]
fn words_are_read_and_written_alike() {
    let text = "async_checkpoint=30,new_name=sync,fdatasync=relog,commit=7";
    let switches: Switches = text.parse().unwrap();
    let mut options = MountOptions::default();
    switches.apply(&mut options);
    assert_eq!(options.async_checkpoint, Some(30));
    assert_eq!((options.new_name, options.fdatasync), (NewName::Sync, FdatasyncRule::Relog));
    assert_eq!(options.commit, Duration::from_secs(7));
    assert_eq!(options.new_name.to_string().parse::<NewName>().unwrap(), NewName::Sync);
    let live = Live::new(&options);
    assert_eq!(
        (live.new_name(), live.fdatasync(), live.commit()),
        (NewName::Sync, FdatasyncRule::Relog, options.commit)
    );
    "noplug,writeback_order=location".parse::<Switches>().unwrap().apply(&mut options);
    live.set(&options);
    assert_eq!((live.plug(), live.order().name()), (false, "location"));
    "noasync_checkpoint".parse::<Switches>().unwrap().apply(&mut options);
    assert_eq!(options.async_checkpoint, None);
    assert_eq!(options.new_name, NewName::Sync, "what is not named stays");
}

#[test]
fn a_list_of_words_makes_the_same_changes_again() {
    for list in [
        "async_checkpoint=30,commit=7,new_name=sync,fdatasync=relog,noplug,noatime,discard",
        "noasync_checkpoint,plug,relatime,nodiscard,writeback_order=location",
        "",
    ] {
        let switches: Switches = list.parse().unwrap();
        assert_eq!(switches.to_string(), list);
        let mut all: Switches = "commit=9,noplug,noatime,async_checkpoint=5".parse().unwrap();
        let mut one_by_one = all;
        all.add(&switches);
        for word in list.split(',').filter(|word| !word.is_empty()) {
            assert!(one_by_one.take(word).unwrap());
        }
        assert_eq!(all, one_by_one);
    }
}

#[test]
fn a_wrong_word_is_named_with_what_would_be_right() {
    let refused = |text: &str| text.parse::<Switches>().unwrap_err().to_string();
    for (text, part) in [
        ("async_checkpoint=0", "1 to 99"),
        ("async_checkpoint=100", "1 to 99"),
        ("async_checkpoint=x", "1 to 99"),
        ("new_name=maybe", "lazy or sync"),
        ("fdatasync=", "seq or fields or relog"),
        ("commit=0", "1 to 300"),
        ("cache_size=1M", "cannot change while mounted"),
    ] {
        let message = refused(text);
        assert!(message.contains(text.split('=').next().unwrap()) && message.contains(part), "{message}");
    }
}
