//! Owns every way the API says no: the stable codes, and how a refusal is written (RFC 9457).
//! Must never know: why a room refused, beyond what it says.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::path::shown;
use crate::domain::event::FieldError;
use crate::domain::text::showable;
use crate::door::Reason;
use crate::door::gate::retry_after_s;
use crate::store::StoreError;
use crate::wire::{FieldProblem, ImportAnswer, Problem, QuotaLimit};

/// The kind of every refusal's body.
pub(super) const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $status:literal $code:literal $title:literal $retryable:literal,)+) => {
        /// Every problem the API answers with. The names are stable: programs may rely on them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Code { $($(#[$doc])* $name,)+ }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The stable name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code,)+ }
            }

            /// The HTTP status it comes with.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)+ }
            }

            /// Whether the same request may succeed later.
            #[must_use]
            pub const fn retryable(self) -> bool {
                match self { $(Self::$name => $retryable,)+ }
            }

            const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)+ }
            }
        }
    };
}

codes! {
    /// The body is not JSON; `detail` names line and column.
    BadJson = 400 "bad_json" "The body is not valid JSON" false,
    /// The request could not be read to its end.
    BadRequest = 400 "bad_request" "The request could not be read" false,
    /// No key, or an unknown one.
    Unauthenticated = 401 "unauthenticated" "A known API key is needed" false,
    /// The key lacks the scope.
    Forbidden = 403 "forbidden" "The key may not do this" false,
    /// There is no such path.
    NotFound = 404 "not_found" "There is no such path" false,
    /// There is no such fan-out.
    FanoutNotFound = 404 "fanout_not_found" "There is no such fan-out" false,
    /// There is no such device.
    DeviceNotFound = 404 "device_not_found" "There is no such device" false,
    /// There is no such sweep.
    SweepNotFound = 404 "sweep_not_found" "There is no such sweep" false,
    /// The path has other methods.
    MethodNotAllowed = 405 "method_not_allowed" "The path does not have this method" false,
    /// The body came too slowly.
    BodyTimeout = 408 "body_timeout" "The body came too slowly" true,
    /// The event's id was used for another event.
    EventConflict = 409 "event_conflict" "The id was used for another event" false,
    /// The event was corrected before it came, and the correction was sent to others than those it concerns.
    CorrectionSent = 409 "correction_sent" "The event's correction was sent before it came" false,
    /// The fan-out cannot be replayed, whatever its state.
    NotReplayable = 409 "not_replayable" "The fan-out is of a kind that is not replayed" false,
    /// What earlier replays of the fan-out did may be deleted before another one has ended.
    PastRetention = 409 "past_retention" "What is known of the fan-out is too old to replay it" false,
    /// The fan-out was cancelled before.
    FanoutCancelled = 409 "fanout_cancelled" "The fan-out was cancelled before" false,
    /// The fan-out has ended: there is nothing to cancel.
    FanoutSettled = 409 "fanout_settled" "The fan-out has ended" false,
    /// Another sweep is under way.
    SweepRunning = 409 "sweep_running" "Another sweep is under way" true,
    /// The fan-out has not ended: there is nothing to replay yet.
    FanoutOpen = 409 "fanout_open" "The fan-out has not ended" false,
    /// A correction has taken the fan-out's place.
    FanoutSuperseded = 409 "fanout_superseded" "The fan-out was corrected" false,
    /// A replay of the fan-out has not ended.
    ReplayRunning = 409 "replay_running" "The fan-out is being replayed" false,
    /// The fan-out is not paused: there is nothing to resume.
    FanoutNotPaused = 409 "fanout_not_paused" "The fan-out is not paused" false,
    /// The body is larger than this call takes.
    BodyTooLarge = 413 "body_too_large" "The body is too large" false,
    /// The body is of a kind this call does not read.
    UnsupportedMediaType = 415 "unsupported_media_type" "The body is of a kind this call does not read" false,
    /// Fields are wrong; `errors` names each.
    Invalid = 422 "invalid" "Some fields are wrong" false,
    /// Every line of an import was rejected; `import` has the account.
    NothingImported = 422 "nothing_imported" "Every line was rejected" false,
    /// An import without a device in it.
    EmptyImport = 422 "empty_import" "There is nothing to import" false,
    /// The body of an import is no file of its format; `import` says what it seems to be.
    UnreadableFile = 422 "unreadable_file" "The file cannot be read as what it was sent as" false,
    /// The event's usefulness has passed.
    EventTooLate = 422 "event_too_late" "The event came too late to be useful" false,
    /// The key made more requests than its quota.
    QuotaExceeded = 429 "quota_exceeded" "The key's quota is used up" true,
    /// As many requests in flight as this instance serves at once.
    Overloaded = 503 "overloaded" "The instance is at its limit" true,
    /// The caller's time is too short for an answer, or was up before there was one.
    OutOfTime = 503 "out_of_time" "The caller's time is too short" true,
    /// As much waits to be sent as is kept waiting.
    BacklogFull = 503 "backlog_full" "Too many fan-outs wait already" true,
    /// The database does not answer.
    DatabaseUnavailable = 503 "database_unavailable" "The database does not answer" true,
    /// Our own fault; the log knows more.
    Internal = 500 "internal" "The service failed" false,
}

/// What is wrong behind a refusal: for the log, not for the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cause(pub String);

/// One answer that says no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    code: Code,
    cause: Option<Cause>,
    counted_as: Option<Reason>,
    detail: String,
    retry_after_s: Option<u64>,
    errors: Vec<FieldProblem>,
    import: Option<Box<ImportAnswer>>,
    quota: Option<Box<QuotaLimit>>,
}

impl Refusal {
    /// With a `Retry-After` of 1 to 3 s when overload or an outage is the reason.
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        let retry_after_s = (code.status() == 503).then(retry_after_s);
        let detail = detail.into();
        Self {
            code,
            cause: None,
            counted_as: None,
            detail,
            retry_after_s,
            errors: Vec::new(),
            import: None,
            quota: None,
        }
    }

    /// Fields are at fault.
    pub(super) fn fields(errors: Vec<FieldProblem>) -> Self {
        // An empty pointer (RFC 6901) is the whole body, which reads as nothing.
        let name = |e: &FieldProblem| if e.field.is_empty() { "the body".to_owned() } else { e.field.clone() };
        let named: Vec<String> = errors.iter().map(name).collect();
        Self { errors: errors.clone(), ..Self::new(Code::Invalid, format!("see `errors`: {}", named.join(", "))) }
    }

    /// One field is at fault.
    pub(super) fn field(field: &str, problem: impl Into<String>) -> Self {
        Self::fields(vec![FieldProblem { field: field.to_owned(), problem: problem.into() }])
    }

    /// Where in the body it is.
    pub(super) fn at(mut self, field: String, problem: String) -> Self {
        self.errors = vec![FieldProblem { field, problem }];
        self
    }

    /// Why it was shed: for the metrics.
    pub(super) fn counted_as(mut self, reason: Reason) -> Self {
        self.counted_as = Some(reason);
        self
    }

    /// When to come back.
    pub(super) fn retry_after_s(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// What an import had done by then.
    pub(super) fn import(mut self, answer: ImportAnswer) -> Self {
        self.import = Some(Box::new(answer));
        self
    }

    /// Which quota is used up.
    pub(super) fn quota(mut self, limit: QuotaLimit) -> Self {
        self.quota = Some(Box::new(limit));
        self
    }

    /// The database is to blame. Each request of an outage is worth a line only to who looks for one; that requests are
    /// shed, and why, is said once in a while by whoever counts them.
    pub(super) fn database(why: String, detail: &str) -> Self {
        tracing::debug!(target: "fanfare::api", error = %why, "database unavailable");
        Self { cause: Some(Cause(why)), ..Self::new(Code::DatabaseUnavailable, detail) }
    }

    /// What its answer says.
    pub(super) fn body(self) -> Bytes {
        let Self { code, cause: _, counted_as: _, detail, retry_after_s, errors, import, quota } = self;
        let problem = Problem {
            kind: "about:blank".to_owned(),
            title: code.title().to_owned(),
            status: code.status(),
            detail: showable(detail),
            code: code.as_str().to_owned(),
            retryable: code.retryable(),
            retry_after_s,
            errors: errors.into_iter().map(escaped).collect(),
            import,
            quota: quota.map(|limit| *limit),
        };
        // Strings and numbers serialise; an answer without a body has its status all the same.
        serde_json::to_vec(&problem).map(Bytes::from).unwrap_or_default()
    }

    /// Our own fault. What is wrong is logged here, once, and not told to the caller.
    pub(super) fn internal(what: &str) -> Self {
        tracing::error!(target: "fanfare::api", error = what, "request failed");
        Self::new(Code::Internal, "this is our fault; the service's log has more under this request's id")
    }
}

/// A caller's own name of a field may hold anything, and what is said of it may end on a terminal or in a log. The pointer
/// stays what it is: a program finds the field by it.
fn escaped(fault: FieldProblem) -> FieldProblem {
    FieldProblem { problem: showable(fault.problem), ..fault }
}

impl From<Vec<FieldError>> for Refusal {
    fn from(faults: Vec<FieldError>) -> Self {
        Self::fields(faults.into_iter().map(|f| FieldProblem { field: f.field, problem: f.problem }).collect())
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(why) => {
                Self::database(why, "it may have been kept or not; send the same request again")
            }
            StoreError::Corrupt(_) | StoreError::Schema(_) | StoreError::Statement(_) => {
                Self::internal(&error.to_string())
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(mut self) -> Response {
        let (code, retry_after_s, cause, reason) = (self.code, self.retry_after_s, self.cause.take(), self.counted_as);
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, self.body()).into_response();
        // For who counts: the guard does not read bodies.
        response.extensions_mut().insert(code);
        if let Some(cause) = cause {
            response.extensions_mut().insert(cause);
        }
        if let Some(reason) = reason {
            response.extensions_mut().insert(reason);
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, PROBLEM_JSON);
        if let Some(seconds) = retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if code == Code::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

pub(super) async fn no_such_path(uri: Uri) -> Refusal {
    let path = shown(uri.path());
    Refusal::new(Code::NotFound, format!("nothing is served at {path}; the calls are listed in the README"))
}

pub(super) async fn no_such_method(method: Method) -> Refusal {
    Refusal::new(Code::MethodNotAllowed, format!("{method} is not served here; `Allow` lists what is"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_distinct_and_statuses_exist() {
        let names: BTreeSet<&str> = Code::ALL.iter().map(|c| c.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            let response = Refusal::new(*code, "x").into_response();
            assert_eq!(response.status().as_u16(), code.status());
            assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        }
    }

    #[test]
    fn a_fault_of_the_whole_body_is_named_too() {
        assert_eq!(Refusal::field("", "must be a JSON object").detail, "see `errors`: the body");
    }

    #[test]
    fn overload_and_outage_say_when_to_come_back() {
        for code in Code::ALL.iter().filter(|c| c.status() == 503) {
            let response = Refusal::new(*code, "x").into_response();
            let seconds: u64 = response.headers()[RETRY_AFTER].to_str().unwrap().parse().unwrap();
            assert!((1..=3).contains(&seconds) && code.retryable(), "{code:?}");
        }
    }

    #[test]
    fn faults_of_ours_are_not_told() {
        let refusal = Refusal::from(StoreError::Statement("SELECT secret FROM t".into()));
        assert!(refusal.code == Code::Internal && !refusal.detail.contains("SELECT"), "{refusal:?}");
    }
}
