//! Files that contain log writes, valid except for the image's secret; see [`kedge_sim::forge`].

use kedge_sim::forge;

/// With the feature `broken`, an engine that does not check the secret runs first. It must accept
/// each forged write, otherwise the check would prove nothing. There is a single test, since the
/// switch applies to the whole process.
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
                        panic!("{claim:?} {when:?}: it would be refused even without the secret")
                    }
                    Err(e) => assert!(e.starts_with("mount, read_only false: "), "{claim:?} {when:?}: {e}"),
                }
            }
        }
    }
    forge::check().unwrap_or_else(|e| panic!("{e}"));
}
