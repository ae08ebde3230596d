//! The counters of a live mount, as it tells them.

use crate::{info, mounts, waits};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;

/// All counters of a mount, and its state.
pub fn of(dir: &Path) -> Result<Value> {
    let text = mounts::attribute(dir, mounts::XATTR_STATS)?;
    let mut stats: Value =
        serde_json::from_str(&text).with_context(|| format!("read the counters of {}", dir.display()))?;
    waits::write_date(&mut stats);
    stats["state"] = state(dir, waits::told(&stats))?;
    Ok(stats)
}

/// Whether the file system still takes changes, and if not, since when and why. `device`: that it
/// does not answer.
fn state(dir: &Path, device: Option<String>) -> Result<Value> {
    let info: Value = serde_json::from_str(&mounts::attribute(dir, mounts::XATTR_INFO)?)
        .with_context(|| format!("read what {} says of itself", dir.display()))?;
    Ok(json!({
        "shut_down": !info["shut_down"].is_null(),
        "reason": info["shut_down"],
        "since": info["shut_down_since"].as_i64().map(info::date),
        "device_late": device.is_some(),
        "device": device,
        "frozen": !info["frozen_since"].is_null(),
        "frozen_since": info["frozen_since"].as_i64().map(info::date),
    }))
}
