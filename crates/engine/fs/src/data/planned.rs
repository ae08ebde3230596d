//! Plans what a page gets when the record that makes it log-resident is committed. The plan is made
//! before the commit and applied after it, so a commit that fails leaves the page as it is.

use super::write::place_of;
use crate::cache::pages::{Backing, Page, Pages};
use crate::extents::{Mapping, Place};

/// What a page gets, besides its bytes, when the record is committed.
pub(super) struct PagePlan {
    pub index: u64,
    pub backing: Backing,
    /// Whether a promised block goes to the page.
    pub promised: bool,
    /// Whether a block of the limit's charge goes to the page.
    pub charged: bool,
}

/// Computes the new state of a page that becomes log-resident. The caller holds `io` exclusively
/// and `wb`, so no page is being written.
pub(super) fn plan_page(pages: &Pages, index: u64, map: &[Mapping]) -> PagePlan {
    let page = pages.get(index);
    let backing = page.map_or(Backing::Unknown, |page| page.backing);
    let is_charged = page.is_some_and(Page::is_charged);
    if !matches!(backing, Backing::Unknown | Backing::Shared) {
        return PagePlan { index, backing, promised: false, charged: false };
    }
    let (backing, is_new) = match place_of(map, index) {
        Place::Written(_) => (Backing::Written, false),
        Place::Unwritten(_) => (Backing::Unwritten, false),
        Place::Shared(_, false) => (Backing::Moving, false),
        Place::Shared(_, true) => (Backing::Reserved, false),
        Place::Hole => (Backing::Reserved, true),
    };
    let promised = matches!(backing, Backing::Moving | Backing::Reserved);
    PagePlan { index, backing, promised, charged: is_new && !is_charged }
}
