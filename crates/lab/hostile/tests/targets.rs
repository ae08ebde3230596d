//! The corpus of each target, and mutations of it for a few seconds.
//!
//! `KEDGE_FUZZ_SECONDS` sets the processor seconds, `KEDGE_SEED` the seed.

use kedge_hostile::drive::test;
use kedge_hostile::{corpus, fuse, kcr, nbd, nfs, uri};

#[test]
fn recordings_of_others_do_no_harm() {
    test(&kcr::TARGET, &corpus("kcr"));
}

#[test]
fn servers_do_no_harm() {
    test(&nbd::TARGET, &corpus("nbd"));
}

#[test]
fn names_of_images_do_no_harm() {
    test(&uri::TARGET, &corpus("uri"));
}

#[test]
fn requests_do_no_harm() {
    test(&fuse::TARGET, &corpus("fuse"));
}

#[test]
fn clients_do_no_harm() {
    test(&nfs::TARGET, &corpus("nfs"));
}
