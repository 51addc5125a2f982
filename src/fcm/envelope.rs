//! Owns the reading of Google's error envelope: details are found by `@type`, in any order.
//! Must never know: what the facts amount to.

use serde_json::Value;

/// Errors FCM's own detail can name (firebase.google.com/docs/reference/fcm/rest/v1/ErrorCode).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FcmCode {
    /// `INVALID_ARGUMENT`
    InvalidArgument,
    /// `UNREGISTERED`
    Unregistered,
    /// `SENDER_ID_MISMATCH`
    SenderIdMismatch,
    /// `QUOTA_EXCEEDED`
    QuotaExceeded,
    /// `UNAVAILABLE`
    Unavailable,
    /// `INTERNAL`
    Internal,
    /// `THIRD_PARTY_AUTH_ERROR`
    ThirdPartyAuth,
    /// Any other value, `UNSPECIFIED_ERROR` included, or two details that contradict each other.
    Unknown,
}

impl FcmCode {
    fn parse(raw: &str) -> Self {
        match raw {
            "INVALID_ARGUMENT" => Self::InvalidArgument,
            "UNREGISTERED" => Self::Unregistered,
            "SENDER_ID_MISMATCH" => Self::SenderIdMismatch,
            "QUOTA_EXCEEDED" => Self::QuotaExceeded,
            "UNAVAILABLE" => Self::Unavailable,
            "INTERNAL" => Self::Internal,
            "THIRD_PARTY_AUTH_ERROR" => Self::ThirdPartyAuth,
            _ => Self::Unknown,
        }
    }

    /// The name FCM gives it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::Unregistered => "UNREGISTERED",
            Self::SenderIdMismatch => "SENDER_ID_MISMATCH",
            Self::QuotaExceeded => "QUOTA_EXCEEDED",
            Self::Unavailable => "UNAVAILABLE",
            Self::Internal => "INTERNAL",
            Self::ThirdPartyAuth => "THIRD_PARTY_AUTH_ERROR",
            Self::Unknown => "an unknown FCM error code",
        }
    }
}

/// What an error envelope says, as far as it is understood.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Envelope {
    /// `error.status`, the gRPC name of the error.
    pub status: String,
    /// `error.message`; hostile.
    pub message: String,
    /// `errorCode` of `google.firebase.fcm.v1.FcmError`.
    pub fcm: Option<FcmCode>,
    /// `statusCode` of `google.firebase.fcm.v1.ApnsError`.
    pub apns_status: Option<u64>,
    /// `reason` of the same; hostile.
    pub apns_reason: Option<String>,
    /// Every `field` of `google.rpc.BadRequest`; hostile.
    pub fields: Vec<String>,
    /// `reason` of `google.rpc.ErrorInfo`; hostile.
    pub reason: Option<String>,
}

impl Envelope {
    /// Reads `{"error": {"status": "...", ...}}`. Without that much, or with a `code` that is no number, it is not
    /// Google's envelope: a proxy's page, or somebody else's JSON.
    pub fn read(json: &Value) -> Option<Self> {
        let error = json.get("error")?;
        if error.get("code").is_some_and(|code| !code.is_u64()) {
            return None;
        }
        let mut envelope = Self {
            status: text(error, "status")?,
            message: text(error, "message").unwrap_or_default(),
            ..Self::default()
        };
        for detail in error.get("details").and_then(Value::as_array).into_iter().flatten() {
            envelope.take(detail);
        }
        Some(envelope)
    }

    fn take(&mut self, detail: &Value) {
        match type_name(detail) {
            Some("google.firebase.fcm.v1.FcmError") => self.take_fcm(detail),
            Some("google.firebase.fcm.v1.ApnsError") => {
                self.apns_status = detail.get("statusCode").and_then(Value::as_u64);
                self.apns_reason = text(detail, "reason");
            }
            Some("google.rpc.BadRequest") => {
                let violations = detail.get("fieldViolations").and_then(Value::as_array).into_iter().flatten();
                // A violation without a readable field is one about an unknown field, not one fewer.
                self.fields.extend(violations.map(|v| text(v, "field").unwrap_or_default()));
            }
            Some("google.rpc.ErrorInfo") => self.reason = text(detail, "reason"),
            _ => {}
        }
    }

    fn take_fcm(&mut self, detail: &Value) {
        let code = detail.get("errorCode").and_then(Value::as_str).map_or(FcmCode::Unknown, FcmCode::parse);
        self.fcm = match self.fcm {
            Some(other) if other != code => Some(FcmCode::Unknown),
            _ => Some(code),
        };
    }

    /// Whether a quota was the reason, whatever the HTTP status.
    pub fn throttled(&self) -> bool {
        let by_reason = matches!(self.reason.as_deref(), Some("RATE_LIMIT_EXCEEDED" | "QUOTA_EXCEEDED"));
        self.status == "RESOURCE_EXHAUSTED" || self.fcm == Some(FcmCode::QuotaExceeded) || by_reason
    }
}

/// The message name of a type URL (`google.protobuf.Any`: everything after the last slash).
fn type_name(detail: &Value) -> Option<&str> {
    detail.get("@type")?.as_str()?.rsplit('/').next()
}

fn text(object: &Value, key: &str) -> Option<String> {
    object.get(key)?.as_str().map(str::to_owned)
}
