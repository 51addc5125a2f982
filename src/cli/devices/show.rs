//! Owns `fanfare devices show`.
//! Must never know: how a device is stored.

use crate::cli::target::{Target, print_json};
use crate::cli::{Failure, print};
use crate::wire::{DeviceAnswer, FollowEntry};

/// Shows one device.
pub(super) async fn run(target: &Target, id: &str) -> Result<(), Failure> {
    let device = target.client()?.device(id).await.map_err(|fault| target.failure(fault))?;
    if target.json { print_json(&device) } else { print(&account(&device)) }
}

fn account(d: &DeviceAnswer) -> String {
    let follow = |f: &FollowEntry| match &f.types {
        None => f.subject.clone(),
        Some(types) => format!("{} ({})", f.subject, types.join(", ")),
    };
    let follows: Vec<String> = d.follows.iter().map(follow).collect();
    let or_nothing = |list: Vec<String>| if list.is_empty() { "nothing".to_owned() } else { list.join("; ") };
    [
        format!("device     {} of user {}, {}", d.id, d.user_id, d.state),
        format!("address    {}, SHA-256 {}…", d.addressed_by, d.address_hash),
        format!("platform   {}, locale {}", d.platform, d.locale),
        format!("follows    {}", or_nothing(follows)),
        format!("muted      {}", or_nothing(d.muted.clone())),
        format!("registered {}\n", d.registered_at),
    ]
    .join("\n")
}
