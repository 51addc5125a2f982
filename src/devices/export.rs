//! Owns the export of all devices: pages from the store, lines out, in bounded memory.
//! Must never know: who reads it, or how fast.

use std::sync::Arc;

use super::csv;
use super::follows::show_follows;
use crate::domain::catalogue::Catalogue;
use crate::domain::ids::DeviceKey;
use crate::domain::recipient::{Address, DeviceState};
use crate::store::{DevicePage, DeviceView, Store, StoreError};
use crate::wire::{Format, ImportLine};

/// Devices of one page: one read, one piece of the answer.
const PAGE: u32 = 1000;

/// One export in progress. Nothing of the database is held between two pages.
pub struct Export {
    store: Arc<dyn Store>,
    catalogue: Arc<Catalogue>,
    format: Format,
    page: DevicePage,
    begun: bool,
    ended: bool,
    devices: u64,
}

impl Export {
    /// An export of all devices, or of those in `state`, in the order they were first registered.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, catalogue: Arc<Catalogue>, format: Format, state: Option<DeviceState>) -> Self {
        let page = DevicePage { after: DeviceKey(0), limit: PAGE, state };
        Self { store, catalogue, format, page, begun: false, ended: false, devices: 0 }
    }

    /// Devices given out so far.
    #[must_use]
    pub fn devices(&self) -> u64 {
        self.devices
    }

    /// The next piece, whole lines; `None` after the last. The last line says how many devices there were: a file
    /// without it was cut off.
    ///
    /// # Errors
    /// [`StoreError`]; what was given out before it is no whole export.
    pub async fn next(&mut self) -> Result<Option<String>, StoreError> {
        if self.ended {
            return Ok(None);
        }
        let views = self.store.device_page(self.page).await?;
        let header = !std::mem::replace(&mut self.begun, true) && self.format == Format::Csv;
        let mut text = if header { format!("{}\n", csv::COLUMNS.join(",")) } else { String::new() };
        for view in &views {
            self.write(view, &mut text)?;
        }
        self.devices += views.len() as u64;
        match views.last() {
            Some(last) if views.len() >= PAGE as usize => self.page.after = last.key,
            _ => {
                self.ended = true;
                text.push_str(&self.format.end(self.devices));
            }
        }
        Ok(Some(text))
    }

    fn write(&self, view: &DeviceView, out: &mut String) -> Result<(), StoreError> {
        let line = line(view, &self.catalogue);
        match self.format {
            Format::Csv => out.push_str(&csv::write(&line)),
            Format::Ndjson => {
                let text = serde_json::to_string(&line).map_err(|e| StoreError::Corrupt(e.to_string()))?;
                out.push_str(&text);
                out.push('\n');
            }
        }
        Ok(())
    }
}

fn line(view: &DeviceView, catalogue: &Catalogue) -> ImportLine {
    let (mut follows, muted) = show_follows(&view.follows, catalogue);
    // Types that the catalogue has lost: what is left of such a follow wants nothing.
    follows.retain(|entry| entry.types.as_ref().is_none_or(|types| !types.is_empty()));
    let (token, fid) = match &view.device.address {
        Address::Token(token) => (Some(token.clone()), None),
        Address::Fid(fid) => (None, Some(fid.clone())),
    };
    ImportLine {
        id: view.device.id.to_string(),
        user_id: view.device.user.to_string(),
        token,
        fid,
        platform: view.device.platform.to_string(),
        locale: Some(view.device.locale.as_str().to_owned()),
        state: Some(view.state.to_string()),
        follows: Some(follows),
        muted: Some(muted),
    }
}
