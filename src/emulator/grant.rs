//! Owns the two places that give out access tokens: the OAuth token endpoint and the metadata server.
//! Must never know: what a token is used for.

use http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response};
use serde_json::json;

use super::book::Book;
use super::oauth::{Account, Refusal};
use super::reply::{self, Body, JSON, Reply, Stage};
use super::token_answers::{TokenAnswer, TokenWire};

/// Asked for and answered by a metadata server, so that nobody mistakes another server for one.
const FLAVOR: HeaderName = HeaderName::from_static("metadata-flavor");
/// Its only value.
const GOOGLE: HeaderValue = HeaderValue::from_static("Google");
/// A metadata server gives the same token again until this near its end, seconds; so do Google's.
const RENEWED_BEFORE_S: u64 = 300;
/// Where everything about the account is.
const ACCOUNT: &str = "/computeMetadata/v1/instance/service-accounts/default/";

/// Answers a JWT-bearer grant. `now_s` is Unix time by the emulator's clock.
pub(super) async fn token(book: &Book, account: &Account, form: &[u8], now_s: i64, stage: &impl Stage) -> Reply {
    if let Some(told) = told(book, stage).await {
        return told;
    }
    Ok(match account.check(form, now_s) {
        Ok(()) => issued(book.issue_token()),
        Err(Refusal(error, words)) => refused(400, error, &words),
    })
}

/// Answers a GET of the metadata server; nothing for a path it does not have.
pub(super) async fn metadata(
    book: &Book,
    account: &Account,
    asked: (&str, &HeaderMap),
    stage: &impl Stage,
) -> Option<Reply> {
    let (path, headers) = asked;
    if path != "/" && !path.starts_with("/computeMetadata/") {
        return None;
    }
    if headers.get(FLAVOR) != Some(&GOOGLE) {
        return Some(Ok(reply::text(403, "text/html; charset=UTF-8", "Missing Metadata-Flavor:Google header.")));
    }
    let text = |text: &str| reply::text(200, "application/text", text.to_owned());
    let reply = match path {
        "/" => Ok(text("computeMetadata/\n")),
        "/computeMetadata/v1/project/project-id" => Ok(text(account.project())),
        "/computeMetadata/v1/universe/universe-domain" => Ok(text("googleapis.com")),
        _ => match path.strip_prefix(ACCOUNT)? {
            "email" => Ok(text(account.email())),
            "token" => cached(book, stage).await,
            "" => Ok(reply::text(200, JSON, account.shown().to_string())),
            _ => return None,
        },
    };
    Some(reply.map(|mut response| {
        response.headers_mut().insert(FLAVOR, GOOGLE);
        response
    }))
}

async fn cached(book: &Book, stage: &impl Stage) -> Reply {
    if let Some(told) = told(book, stage).await {
        return told;
    }
    Ok(issued(book.last_token(RENEWED_BEFORE_S).unwrap_or_else(|| book.issue_token())))
}

/// What it was told to answer instead of doing its work.
async fn told(book: &Book, stage: &impl Stage) -> Option<Reply> {
    let call = book.oauth_call();
    if !call.wait.is_zero() {
        tokio::time::sleep(call.wait).await;
    }
    let mut reply = match call.answer {
        TokenAnswer::Works => return None,
        TokenAnswer::Plain(id) => return Some(reply::play(id.answer(), call.retry_after, "", stage).await),
        TokenAnswer::Odd(TokenWire::Refuse(status, error, words)) => refused(status, error, words),
        TokenAnswer::Odd(TokenWire::Again) => issued(book.last_token(0).unwrap_or_else(|| book.issue_token())),
        TokenAnswer::Odd(TokenWire::Issue(template)) => {
            let (token, life_s) = book.issue_token();
            reply::text(200, JSON, template.replace("{token}", &token).replace("{life}", &life_s.to_string()))
        }
    };
    if let Some(seconds) = call.retry_after {
        reply.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    Some(Ok(reply))
}

fn issued((token, life_s): (String, u64)) -> Response<Body> {
    let answer = json!({"access_token": token, "expires_in": life_s, "token_type": "Bearer"});
    reply::text(200, JSON, answer.to_string())
}

fn refused(status: u16, error: &str, words: &str) -> Response<Body> {
    let mut answer = json!({ "error": error });
    if !words.is_empty() {
        answer["error_description"] = words.into();
    }
    reply::text(status, JSON, answer.to_string())
}
