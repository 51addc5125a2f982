//! Owns the built-in answers, one row each.
//! Must never know: how an answer is chosen.
//!
//! Bodies follow what has been seen of FCM HTTP v1. Several rows differ only in the order or the presence of one
//! detail: that is the point of them.

use h2::Reason;

use super::answer::{Answer, Cut, Detail, Number, Wire};

const fn row(name: &'static str, about: &'static str, wire: Wire) -> Answer {
    let taken = matches!(wire, Accept | Drip | Held);
    Answer { name, about, wire, number: Number::Nothing, headers: &[], taken }
}

/// Short names by status.
pub(super) const ALIASES: &[(&str, &str)] = &[("429", "quota"), ("500", "internal"), ("503", "unavailable")];

use Detail::{Apns, Fcm, Field, Info, Quota, Typed};
use Wire::{Accept, Drip, Endless, Error, Hang, Held, Raw, Repeat, Reset, ResetBy, Sever, Stall};

const HTML: &str = "text/html; charset=UTF-8";
const JSON: &str = "application/json; charset=UTF-8";
const PAGE: &[u8] = b"<!DOCTYPE html>\n<html lang=en><title>Error</title><p><b>That is an error.</b></p></html>\n";
const BAD: &str = "INVALID_ARGUMENT";
const GONE: &str = "NOT_FOUND";
const DENIED: &str = "PERMISSION_DENIED";
const ANON: &str = "UNAUTHENTICATED";
const BUSY: &str = "RESOURCE_EXHAUSTED";
const DOWN: &str = "UNAVAILABLE";
const ASK: &str = "Request contains an invalid argument.";
const TOKEN: &str = "The registration token is not a valid FCM registration token";
const ENTITY: &str = "Requested entity was not found.";
const LOGIN: &str = "Request had invalid authentication credentials. Expected OAuth 2 access token.";
const SPENT: &str = "Quota exceeded for quota metric 'Sends' of service 'fcm.googleapis.com'.";
const BURST: &str = "Quota exceeded: too many messages to this device.";
/// What no log, row or page may show as it is: colours of a terminal, turned text, a device token, a URL, a path.
pub(super) const HOSTILE: &str = "\u{1b}[31mred\u{1b}[0m \u{202e}turned\u{202c} \u{2066}in\u{2069}\r\n{\"level\":\"ERROR\"} token 'dQw4w9WgXcQ_hostile1:APA91bHPRgkF3JUikC4ENAHEeMrd41Zxv3hVZjC9KtT8OvPVGJ-hQMRKRrZuJAEcl7B338qju59zJMjw2DELjzEvxwYv7hH5Ynpc1ODQ0aT4U4' at https://evil.example/x?key=AIzaSyD-hostile0123456789abcdefghijk in /srv/hostile/secret.pem or C:\\\\hostile\\\\secret \u{200b}end\u{0}";
/// The same device token where a text of 256 bytes would be cut: half of it is as good as all of it.
const CROSSING: &str = "It is about the device whose registration is no longer any good and which was last heard of a long, long time ago by one of our many friendly front ends in the north of the world, where it keeps its name as dQw4w9WgXcQ_hostile1:APA91bHPRgkF3JUikC4ENAHEeMrd41Zxv3hVZjC9KtT8OvPVGJ-hQMRKRrZuJAEcl7B338qju59zJMjw2DELjzEvxwYv7hH5Ynpc1ODQ0aT4U4";
const AWAY: &str = "The service is currently unavailable.";
/// Long gone.
const PAST: &str = "Wed, 21 Oct 2015 07:28:00 GMT";
/// `{"name":"projects/p/messages/1"}`, compressed.
const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xab\x56\xca\x4b\xcc\x4d\x55\xb2\x52\x2a\x28\xca\xcf\x4a\x4d\x2e\x29\xd6\x2f\xd0\xcf\x4d\x2d\x2e\x4e\x4c\x4f\x2d\xd6\x37\x54\xaa\x05\x00\x56\x01\xa3\x75\x20\x00\x00\x00";

/// Every built-in answer. The first six are also what the emulator gives by itself.
#[rustfmt::skip]
pub(super) const ANSWERS: &[Answer] = &[
    row("ok", "200 with a message name", Accept),
    row("no-credentials", "401 ErrorInfo CREDENTIALS_MISSING", Error(401, ANON, LOGIN, &[Info("CREDENTIALS_MISSING")])),
    row("unauthenticated", "401 ErrorInfo ACCESS_TOKEN_EXPIRED, by the emulator's own check", Error(401, ANON, LOGIN, &[Info("ACCESS_TOKEN_EXPIRED")])),
    row("wrong-project", "404 without details, by the emulator's own check", Error(404, GONE, ENTITY, &[])),
    row("bad-request", "400 for a body that the schema or the limits refuse", Error(400, BAD, ASK, &[Field("message")])),
    row("over-quota", "429 FcmError QUOTA_EXCEEDED by the emulator's own quota", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).number(Number::RetryAfter),
    row("over-device-quota", "429 FcmError QUOTA_EXCEEDED and QuotaFailure by the emulator's own quota of a device", Error(429, BUSY, BURST, &[Fcm("QUOTA_EXCEEDED"), Quota("device")])).number(Number::RetryAfter),
    row("slow", "`slow-N-`: 200 after N ms", Accept).number(Number::DelayMs),
    row("dead", "404 FcmError UNREGISTERED", Error(404, GONE, ENTITY, &[Fcm("UNREGISTERED")])),
    row("dead404apns", "404 ApnsError 410 before FcmError UNREGISTERED", Error(404, GONE, ENTITY, &[Apns(410, "Unregistered"), Fcm("UNREGISTERED")])),
    row("apnsgone", "400 FcmError INVALID_ARGUMENT with ApnsError 410", Error(400, BAD, "APNs device token is disabled.", &[Fcm(BAD), Apns(410, "Unregistered")])),
    row("invalid", "400 FcmError INVALID_ARGUMENT, the token named in the text only", Error(400, BAD, TOKEN, &[Fcm(BAD)])),
    row("invalid-field", "400 FcmError, then BadRequest message.token", Error(400, BAD, TOKEN, &[Fcm(BAD), Field("message.token")])),
    row("invalid-field-first", "400 BadRequest message.token, then FcmError", Error(400, BAD, TOKEN, &[Field("message.token"), Fcm(BAD)])),
    row("suspect", "400 FcmError INVALID_ARGUMENT that names nothing", Error(400, BAD, ASK, &[Fcm(BAD)])),
    row("foreign", "403 FcmError SENDER_ID_MISMATCH", Error(403, DENIED, "SenderId mismatch", &[Fcm("SENDER_ID_MISMATCH")])),
    row("payload", "400 FcmError INVALID_ARGUMENT with BadRequest message.android.ttl", Error(400, BAD, ASK, &[Fcm(BAD), Field("message.android.ttl")])),
    row("badjson", "400 BadRequest on a value of `data`, no FcmError", Error(400, BAD, "Invalid value at 'message.data[0].value' (TYPE_STRING), 12", &[Field("message.data[0].value")])),
    row("nodetails400", "400 without details", Error(400, BAD, ASK, &[])),
    row("hostile", "400 FcmError whose text holds terminal colours, turned text, a device token, a URL and paths", Error(400, BAD, HOSTILE, &[Fcm(BAD), Field("message.data[0].value")])),
    row("hostilefield", "400 FcmError, BadRequest with a hostile field, ApnsError and ErrorInfo with hostile reasons", Error(400, BAD, ASK, &[Fcm(BAD), Field(HOSTILE), Apns(400, HOSTILE), Info(HOSTILE)])),
    row("hostilestatus", "503 whose canonical status is hostile", Error(503, HOSTILE, HOSTILE, &[Fcm("UNAVAILABLE")])),
    row("hostilecut", "400 FcmError whose text has a device token across its 256th byte", Error(400, BAD, CROSSING, &[Fcm(BAD), Field("message.data[0].value")])),
    row("hostilebig", "400 with 5 MB of hostile JSON", Repeat(400, JSON, HOSTILE.as_bytes(), 15_000)),
    row("iam", "403 without FcmError: the role is missing", Error(403, DENIED, "Permission 'cloudmessaging.messages.create' denied on resource '//cloudresourcemanager.googleapis.com/projects/p' (or it may not exist).", &[])),
    row("apidisabled", "403 without FcmError: the API is off", Error(403, DENIED, "Firebase Cloud Messaging API has not been used in project 1 before or it is disabled.", &[])),
    row("noproject", "404 without details", Error(404, GONE, ENTITY, &[])),
    row("thirdparty", "401 FcmError THIRD_PARTY_AUTH_ERROR with ApnsError 403", Error(401, ANON, "Request is missing required authentication credential. Expected OAuth 2 access token.", &[Fcm("THIRD_PARTY_AUTH_ERROR"), Apns(403, "InvalidProviderToken")])),
    row("expired401", "401 ErrorInfo ACCESS_TOKEN_EXPIRED", Error(401, ANON, LOGIN, &[Info("ACCESS_TOKEN_EXPIRED")])),
    row("bare401", "401 without details", Error(401, ANON, LOGIN, &[])),
    row("quota", "429 FcmError QUOTA_EXCEEDED; `quota-N-`: Retry-After N seconds", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).number(Number::RetryAfter),
    row("quotadate", "`quotadate-N-`: the same, Retry-After as the HTTP-date in N seconds", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).number(Number::RetryDate),
    row("quotahuge", "429, Retry-After 99999999999999999999", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).headers(&[("retry-after", "99999999999999999999")]),
    row("quotanegative", "429, Retry-After -5", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).headers(&[("retry-after", "-5")]),
    row("quotafraction", "429, Retry-After 1.5", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).headers(&[("retry-after", "1.5")]),
    row("quotagarbage", "429, Retry-After `soon`", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).headers(&[("retry-after", "soon")]),
    row("quotapast", "429, Retry-After as an HTTP-date of 2015", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).headers(&[("retry-after", PAST)]),
    row("quotatwo", "429 with two headers, Retry-After 3 and 50", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).headers(&[("retry-after", "3"), ("retry-after", "50")]),
    row("quotaempty", "429 with an empty Retry-After", Error(429, BUSY, SPENT, &[Fcm("QUOTA_EXCEEDED")])).headers(&[("retry-after", "")]),
    row("devicequota", "429 as of a device that gets too many: FcmError QUOTA_EXCEEDED and QuotaFailure; `devicequota-N-`: Retry-After N seconds", Error(429, BUSY, BURST, &[Fcm("QUOTA_EXCEEDED"), Quota("device")])).number(Number::RetryAfter),
    row("quotahtml", "429 with an HTML page", Raw(429, HTML, PAGE)).number(Number::RetryAfter),
    row("quota503", "503 whose FcmError is QUOTA_EXCEEDED", Error(503, DOWN, SPENT, &[Fcm("QUOTA_EXCEEDED")])).number(Number::RetryAfter),
    row("ratelimit403", "403 ErrorInfo RATE_LIMIT_EXCEEDED", Error(403, DENIED, SPENT, &[Info("RATE_LIMIT_EXCEEDED")])).number(Number::RetryAfter),
    row("unavailable", "503 FcmError UNAVAILABLE; `unavailable-N-`: Retry-After N seconds", Error(503, DOWN, AWAY, &[Fcm("UNAVAILABLE")])).number(Number::RetryAfter),
    row("unavailabledate", "`unavailabledate-N-`: 503, Retry-After as the HTTP-date in N seconds", Error(503, DOWN, AWAY, &[Fcm("UNAVAILABLE")])).number(Number::RetryDate),
    row("unavailablepast", "503, Retry-After as an HTTP-date of 2015", Error(503, DOWN, AWAY, &[Fcm("UNAVAILABLE")])).headers(&[("retry-after", PAST)]),
    row("unavailablehuge", "503, Retry-After 99999999999999999999", Error(503, DOWN, AWAY, &[Fcm("UNAVAILABLE")])).headers(&[("retry-after", "99999999999999999999")]),
    row("unavailablenegative", "503, Retry-After -5", Error(503, DOWN, AWAY, &[Fcm("UNAVAILABLE")])).headers(&[("retry-after", "-5")]),
    row("unavailablefraction", "503, Retry-After 1.5", Error(503, DOWN, AWAY, &[Fcm("UNAVAILABLE")])).headers(&[("retry-after", "1.5")]),
    row("unavailablegarbage", "503, Retry-After `soon`", Error(503, DOWN, AWAY, &[Fcm("UNAVAILABLE")])).headers(&[("retry-after", "soon")]),
    row("unavailabletwo", "503 with two headers, Retry-After 3 and 50", Error(503, DOWN, AWAY, &[Fcm("UNAVAILABLE")])).headers(&[("retry-after", "3"), ("retry-after", "50")]),
    row("unavailableempty", "503 with an empty Retry-After", Error(503, DOWN, AWAY, &[Fcm("UNAVAILABLE")])).headers(&[("retry-after", "")]),
    row("internal", "500 FcmError INTERNAL", Error(500, "INTERNAL", "Internal error encountered.", &[Fcm("INTERNAL")])),
    row("unspecified", "500 FcmError UNSPECIFIED_ERROR", Error(500, "UNKNOWN", "Unknown Error.", &[Fcm("UNSPECIFIED_ERROR")])),
    row("unknowncode", "400 FcmError with an errorCode nobody knows", Error(400, BAD, ASK, &[Fcm("FLUX_CAPACITOR_EMPTY")])),
    row("unknowncode404", "404 FcmError with an errorCode nobody knows", Error(404, GONE, ENTITY, &[Fcm("FLUX_CAPACITOR_EMPTY")])),
    row("unknowncode500", "500 FcmError with an errorCode nobody knows", Error(500, "INTERNAL", "Internal error encountered.", &[Fcm("FLUX_CAPACITOR_EMPTY")])),
    row("oldtype404", "404 UNREGISTERED under the old type FcmErrorCode", Error(404, GONE, ENTITY, &[Typed("type.googleapis.com/google.firebase.fcm.v1.FcmErrorCode", "UNREGISTERED")])),
    row("othertype404", "404 UNREGISTERED under the type of another service", Error(404, GONE, ENTITY, &[Typed("type.googleapis.com/google.example.v1.OtherError", "UNREGISTERED")])),
    row("barestring", "400 whose `error` is a string", Raw(400, JSON, b"{\"error\":\"InvalidRegistration\"}")),
    row("errornull", "400 whose `error` is null", Raw(400, JSON, b"{\"error\":null}")),
    row("errorarray", "400 whose `error` is an array", Raw(400, JSON, b"{\"error\":[]}")),
    row("nostatus404", "404 whose `error` is empty", Raw(404, JSON, b"{\"error\":{}}")),
    row("codestring404", "404 whose `code` is a string, UNREGISTERED otherwise", Raw(404, JSON, b"{\"error\":{\"code\":\"404\",\"status\":\"NOT_FOUND\",\"details\":[{\"@type\":\"type.googleapis.com/google.firebase.fcm.v1.FcmError\",\"errorCode\":\"UNREGISTERED\"}]}}")),
    row("detailsobject404", "404 whose `details` is an object", Raw(404, JSON, b"{\"error\":{\"code\":404,\"status\":\"NOT_FOUND\",\"details\":{\"errorCode\":\"UNREGISTERED\"}}}")),
    row("detailsstring404", "404 whose `details` are strings", Raw(404, JSON, b"{\"error\":{\"code\":404,\"status\":\"NOT_FOUND\",\"details\":[\"UNREGISTERED\"]}}")),
    row("codenumber404", "404 whose `errorCode` is a number", Raw(404, JSON, b"{\"error\":{\"code\":404,\"status\":\"NOT_FOUND\",\"details\":[{\"@type\":\"type.googleapis.com/google.firebase.fcm.v1.FcmError\",\"errorCode\":7}]}}")),
    row("utf8broken404", "404 with bytes that are no UTF-8 before UNREGISTERED", Raw(404, JSON, b"{\"error\":{\"code\":404,\"message\":\"\xff\xfe\",\"status\":\"NOT_FOUND\",\"details\":[{\"@type\":\"type.googleapis.com/google.firebase.fcm.v1.FcmError\",\"errorCode\":\"UNREGISTERED\"}]}}")),
    row("html200", "200 with an HTML page", Raw(200, HTML, PAGE)),
    row("html401", "401 with an HTML page", Raw(401, HTML, PAGE)),
    row("html403", "403 with an HTML page", Raw(403, HTML, PAGE)),
    row("html404", "404 with an HTML page", Raw(404, HTML, PAGE)),
    row("html502", "502 with an HTML page", Raw(502, HTML, PAGE)),
    row("html503", "503 with an HTML page", Raw(503, HTML, PAGE)),
    row("html504", "504 with an HTML page", Raw(504, HTML, PAGE)),
    row("huge502", "502 with 1.2 MB of HTML", Repeat(502, HTML, b"<p>sorry</p>", 100_000)),
    row("big503", "503 with 5 MB of HTML", Repeat(503, HTML, b"<p>sorry</p>", 440_000)),
    row("big200", "200 with 5 MB of JSON and no name", Repeat(200, JSON, b"[\"padding!\"]\n", 410_000)),
    row("deep200", "200 with JSON 10,000 arrays deep", Repeat(200, JSON, b"[", 10_000)),
    row("empty200", "200 with an empty body", Raw(200, JSON, b"")),
    row("empty401", "401 with an empty body", Raw(401, JSON, b"")),
    row("empty404", "404 with an empty body", Raw(404, JSON, b"")),
    row("empty500", "500 with an empty body", Raw(500, JSON, b"")),
    row("empty503", "503 with an empty body", Raw(503, JSON, b"")),
    row("noname200", "200 with `{}`", Raw(200, JSON, b"{}")),
    row("nonstring200", "200 whose `name` is a number", Raw(200, JSON, b"{\"name\":7}")),
    row("array200", "200 with `[]`", Raw(200, JSON, b"[]")),
    row("string200", "200 with a JSON string", Raw(200, JSON, b"\"ok\"")),
    row("number200", "200 with a JSON number", Raw(200, JSON, b"7")),
    row("null200", "200 with `null`", Raw(200, JSON, b"null")),
    row("nullname200", "200 whose `name` is null", Raw(200, JSON, b"{\"name\":null}")),
    row("emptyname200", "200 whose `name` is empty", Raw(200, JSON, b"{\"name\":\"\"}")),
    row("objectname200", "200 whose `name` is an object", Raw(200, JSON, b"{\"name\":{}}")),
    row("twice200", "200 with two JSON documents", Raw(200, JSON, b"{\"name\":\"projects/p/messages/1\"}{}")),
    row("utf8broken200", "200 whose `name` is no UTF-8", Raw(200, JSON, b"{\"name\":\"projects/\xff\xfe\"}")),
    row("text200", "200 with a name, said to be text/plain; taken", Raw(200, "text/plain", b"{\"name\":\"projects/p/messages/1\"}")).taken(),
    row("gzip200", "200 with a name, compressed with gzip unasked; taken", Raw(200, JSON, GZIP)).headers(&[("content-encoding", "gzip")]).taken(),
    row("truncated", "200 with JSON cut in the middle", Raw(200, JSON, b"{\"name\":\"projects/p/mess")),
    row("truncated404", "404 with an UNREGISTERED body cut in the middle", Raw(404, JSON, b"{\"error\":{\"code\":404,\"status\":\"NOT_FOUND\",\"details\":[{\"errorCode\":\"UNREGISTERED\"")),
    row("shortbody", "200 whose body ends before its Content-Length", Raw(200, JSON, b"{\"name\":\"projects/p/mess")).headers(&[("content-length", "80")]),
    row("redirect302", "302 to another path", Raw(302, HTML, PAGE)).headers(&[("location", "/v1/elsewhere")]),
    row("redirect301", "301 to another host", Raw(301, HTML, PAGE)).headers(&[("location", "https://fcm.example.com/v1/elsewhere")]),
    row("redirect307", "307 to another path", Raw(307, HTML, PAGE)).headers(&[("location", "/v1/elsewhere")]),
    row("redirect308", "308 to itself", Raw(308, HTML, PAGE)).headers(&[("location", "/v1/projects/demo-project/messages:send")]),
    row("method405", "405 with an HTML page", Raw(405, HTML, PAGE)),
    row("oversize413", "413 with an HTML page", Raw(413, HTML, PAGE)),
    row("refused", "RST_STREAM REFUSED_STREAM: not processed", Reset(Reason::REFUSED_STREAM)),
    row("reset", "RST_STREAM INTERNAL_ERROR after the request was logged", Reset(Reason::INTERNAL_ERROR)),
    row("cancelled", "RST_STREAM CANCEL after the request was logged", Reset(Reason::CANCEL)),
    row("rst", "RST_STREAM CANCEL; `rst-N-`: with code N, 7 = REFUSED_STREAM = not processed", ResetBy).number(Number::Code),
    row("lostrst", "the same, but the message was taken", ResetBy).number(Number::Code).taken(),
    row("fin", "the connection ends with FIN", Sever(Cut::Fin)),
    row("lostfin", "the same, but the message was taken", Sever(Cut::Fin)).taken(),
    row("tcprst", "the connection ends with a TCP RST", Sever(Cut::Rst)),
    row("losttcprst", "the same, but the message was taken", Sever(Cut::Rst)).taken(),
    row("hang", "no answer, ever", Hang),
    row("lost", "no answer, ever, but the message was taken", Hang).taken(),
    row("held", "200 with a message name when `release` is ordered; taken at once", Held),
    row("stall", "200 and a header, then no body", Stall),
    row("drip", "200 one byte per second; `drip-N-`: N bytes; taken at once", Drip).number(Number::Speed),
    row("endless", "200 with a body that never ends", Endless),
    row("cut", "200, half a body, then RST_STREAM INTERNAL_ERROR", Wire::Cut),
];
