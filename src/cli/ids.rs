//! Owns how a command reads ids: what can name nothing is refused before the service is asked.
//! Must never know: what there is.

use crate::devices::UNREACHABLE;
use crate::domain::ids::{DeviceId, FanoutId};

/// A device's id.
pub(super) fn device(raw: &str) -> Result<String, String> {
    if UNREACHABLE.contains(&raw) {
        return Err("no device can have this id".to_owned());
    }
    DeviceId::parse(raw).map(String::from).map_err(|fault| fault.to_string())
}

/// A fan-out's id, as the service writes it.
pub(super) fn fanout(raw: &str) -> Result<String, String> {
    match raw.parse::<FanoutId>() {
        Ok(id) if id.0 > 0 && id.to_string() == raw => Ok(id.to_string()),
        _ => Err("must be a number such as 17; `fanfare fanout list` shows them".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_name_nothing_is_refused() {
        for raw in ["export", "import", ".", "..", "", "a b"] {
            assert!(device(raw).is_err(), "{raw:?}");
        }
        for raw in ["abc", "-1", "1.5", "", "+1", "01", "0", "99999999999999999999"] {
            assert!(fanout(raw).is_err(), "{raw:?}");
        }
        assert_eq!((device("phone-1"), fanout("17")), (Ok("phone-1".to_owned()), Ok("17".to_owned())));
    }
}
