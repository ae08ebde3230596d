//! Arguments that name a place in an image.

use anyhow::Error;
use clap::builder::{OsStringValueParser, TypedValueParser};
use kedge_host::Usage;
use kedge_transfer::copy::Place;
use kedge_transfer::offline::{ImagePath, parse_image_path};
use std::ffi::OsString;

/// `IMAGE:/PATH`.
pub fn image_path() -> impl TypedValueParser<Value = ImagePath> {
    OsStringValueParser::new().try_map(parse_image_path)
}

/// `IMAGE:/PATH`, or a path on this machine.
pub fn place() -> impl TypedValueParser<Value = Place> {
    OsStringValueParser::new().map(|text: OsString| match parse_image_path(text.clone()) {
        Ok(path) => Place::Image(path),
        Err(_) => Place::Host(text.into()),
    })
}

/// The error of a command whose two places are not both in a mount or both in an image.
pub fn mixed() -> Error {
    Usage("both must be in a mount, or both in an image".into()).into()
}
