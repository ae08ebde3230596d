//! Files whose bytes are log writes but for the image's secret; see [`kedge_sim::forge`].

use kedge_sim::forge;

/// With the feature `broken` first the engine that does not ask for the secret: it must fall for
/// each forged write, or the check would show nothing. One test alone: the switch is one for the
/// process.
#[test]
fn no_content_of_a_file_passes_for_a_log_write() {
    #[cfg(feature = "broken")]
    {
        use kedge_base::broken::{Variant, set};
        for claim in forge::Claim::ALL {
            for when in forge::When::ALL {
                let image = forge::image(claim, when).unwrap_or_else(|e| panic!("{claim:?} {when:?}: {e}"));
                set(Some(Variant::UnkeyedLog));
                let judged = forge::judge(&image);
                set(None);
                match judged {
                    Ok(()) => {
                        panic!("{claim:?} {when:?}: nobody would have believed it without a key either")
                    }
                    Err(e) => assert!(e.starts_with("mount, read_only false: "), "{claim:?} {when:?}: {e}"),
                }
            }
        }
    }
    forge::check().unwrap_or_else(|e| panic!("{e}"));
}
