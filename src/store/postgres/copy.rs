//! Owns how new devices of an import and what they follow are written: with `COPY`, which writes a page of rows at once
//! where `INSERT` writes each alone, and has no arrays to take apart.
//! Must never know: which devices are new.

use bytes::BufMut;
use sqlx::{Postgres, Transaction};

use super::fault::Fault;
use super::rows::columns;
use crate::domain::recipient::DeviceState;
use crate::store::import::Taken;

/// Keys in the order of the file, which an export keeps, and the time the devices come.
pub(super) const KEYS: &str = "
SELECT array_agg(nextval('device_device_key_seq')), fanfare_now_ms() FROM generate_series(1, $1)";

/// The columns in the order of [`device`].
pub(super) const DEVICES: &str = "
COPY device (device_key, id, user_id, token, fid, platform, locale, muted, state, state_ms, registered_ms, created_ms,
             follows_ms) FROM STDIN (FORMAT binary)";

pub(super) const FOLLOWS: &str = "COPY follow (subject, device_key, wanted, kinds) FROM STDIN (FORMAT binary)";

/// What the binary format begins with: a signature, no flags, nothing more.
const HEAD: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// In the place of a number of columns: there are no more rows.
const END: i16 = -1;
/// In the place of a length: null.
const NULL: i32 = -1;

/// Keys for new devices, and the database's time.
pub(super) struct Places {
    keys: Vec<i64>,
    now: i64,
}

impl Places {
    /// The first so many, and the rest.
    pub(super) fn halved(mut self, at: usize) -> (Self, Self) {
        let rest = self.keys.split_off(at.min(self.keys.len()));
        let now = self.now;
        (self, Self { keys: rest, now })
    }
}

/// Places for so many new devices.
pub(super) async fn places(tx: &mut Transaction<'_, Postgres>, many: usize) -> Result<Places, Fault> {
    let many = i64::try_from(many).unwrap_or(i64::MAX);
    let (keys, now): (Option<Vec<i64>>, i64) = sqlx::query_as(KEYS).bind(many).fetch_one(&mut **tx).await?;
    Ok(Places { keys: keys.unwrap_or_default(), now })
}

/// Writes devices nobody has and what they follow. Whoever inserts the same device or address at the same time goes first;
/// this transaction is then tried again and finds it there. Rows are written in the order of their ids: two imports of
/// the same devices in another order never wait for each other in a ring.
pub(super) async fn write(
    tx: &mut Transaction<'_, Postgres>,
    new: &[&Taken<'_>],
    places: &Places,
) -> Result<(), Fault> {
    let mut devices: Vec<(&Taken<'_>, i64)> = new.iter().copied().zip(places.keys.iter().copied()).collect();
    devices.sort_unstable_by_key(|(taken, _)| taken.row.id().as_str());
    let mut rows = Rows::default();
    devices.iter().for_each(|(taken, key)| device(&mut rows, taken, *key, places.now));
    rows.copy(tx, DEVICES).await?;
    let mut follows = Vec::new();
    for (taken, key) in &devices {
        let Some(said) = taken.follows else { continue };
        for (subject, mask) in &said.subjects {
            follows.push((subject.as_str(), *key, *mask, said.kinds(*mask, taken.state)));
        }
    }
    if follows.is_empty() {
        return Ok(());
    }
    // The order of their index.
    follows.sort_unstable_by_key(|(subject, key, ..)| (*subject, *key));
    let mut rows = Rows::default();
    for (subject, key, wanted, kinds) in follows {
        rows.begin(4).text(Some(subject)).long(key).long(wanted.0).long(kinds.0);
    }
    rows.copy(tx, FOLLOWS).await
}

fn device(rows: &mut Rows, taken: &Taken<'_>, key: i64, now: i64) {
    let device = &taken.row.device;
    let (token, fid) = columns(&device.address);
    let muted = taken.follows.map(|follows| follows.muted.0);
    rows.begin(13)
        .long(key)
        .text(Some(device.id.as_str()))
        .text(Some(device.user.as_str()))
        .text(token)
        .text(fid)
        .short(device.platform.code())
        .text(Some(device.locale.as_str()))
        .long(muted.unwrap_or(0))
        .short(taken.state.code())
        .long(if taken.state == DeviceState::Live { 0 } else { now })
        .long(now)
        .long(now)
        .long(if muted.is_some() { now } else { 0 });
}

/// Rows in the binary format of `COPY` (PostgreSQL manual, COPY, "Binary Format"): numbers are big-endian.
struct Rows(Vec<u8>);

impl Default for Rows {
    fn default() -> Self {
        Self(HEAD.to_vec())
    }
}

impl Rows {
    fn begin(&mut self, columns: i16) -> &mut Self {
        self.0.put_i16(columns);
        self
    }

    fn text(&mut self, text: Option<&str>) -> &mut Self {
        match text.map(|text| (i32::try_from(text.len()).unwrap_or(i32::MAX), text)) {
            None => self.0.put_i32(NULL),
            Some((length, text)) => {
                self.0.put_i32(length);
                self.0.put_slice(text.as_bytes());
            }
        }
        self
    }

    fn long(&mut self, number: i64) -> &mut Self {
        self.0.put_i32(8);
        self.0.put_i64(number);
        self
    }

    fn short(&mut self, number: i16) -> &mut Self {
        self.0.put_i32(2);
        self.0.put_i16(number);
        self
    }

    async fn copy(mut self, tx: &mut Transaction<'_, Postgres>, statement: &'static str) -> Result<(), Fault> {
        self.0.put_i16(END);
        let mut copy = tx.copy_in_raw(statement).await?;
        copy.send(self.0).await?;
        copy.finish().await?;
        Ok(())
    }
}
