//! Growing an image while it is in use: see `docs/rfcs/0027-resize.md`.

use crate::core::Fs;
use crate::error::{Error, Result};
use crate::gate::Phase;
use kedge_base::BLOCK_SIZE;

impl Fs {
    /// Excludes freeze, thaw and close: a frozen image must not be written. Changes continue.
    pub(crate) fn resize(&self, bytes: Option<u64>) -> Result<u64> {
        let gate = self.engine().gate();
        let _single = gate.single();
        if gate.phase() != Phase::Open {
            return Err(Error::Busy("the file system is frozen"));
        }
        self.engine().check_open()?;
        let store = self.engine().store();
        let bytes = bytes.unwrap_or_else(|| store.device().room());
        let now = store.total_blocks() * BLOCK_SIZE as u64;
        if bytes < now {
            let what = format!("{bytes} bytes are less than the {now} that the image has; it can only grow");
            return Err(kedge_base::Error::invalid(what).into());
        }
        Ok(store.grow(bytes)?)
    }
}
