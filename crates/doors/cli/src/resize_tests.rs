use super::*;

#[test]
fn neither_the_error_of_a_resize_nor_that_of_the_close_is_lost() {
    let resized = |ok: bool| if ok { Ok(7) } else { Err(anyhow!("no room").context("resize disk")) };
    let closed = |ok: bool| if ok { Ok(()) } else { Err(anyhow!("gone").context("close disk")) };
    assert_eq!(both(resized(true), closed(true)).unwrap(), 7);
    for (resize, close, text) in [
        (false, true, "resize disk: no room"),
        (true, false, "close disk: gone"),
        (false, false, "resize disk: no room; close disk: gone"),
    ] {
        let e = both(resized(resize), closed(close)).unwrap_err();
        assert_eq!(format!("{e:#}"), text);
    }
}
