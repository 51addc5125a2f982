//! Every answer by device token, as it is on the wire.

use std::time::SystemTime;

use fanfare::emulator::answers;

use super::*;

/// Written by hand from what FCM has been seen to answer, not from the emulator's table.
#[rustfmt::skip]
const ON_THE_WIRE: &[(&str, &str)] = &[
    ("no-credentials-1", "401 UNAUTHENTICATED Info=CREDENTIALS_MISSING,googleapis.com"),
    ("unauthenticated-1", "401 UNAUTHENTICATED Info=ACCESS_TOKEN_EXPIRED,googleapis.com"),
    ("wrong-project-1", "404 NOT_FOUND"),
    ("bad-request-1", "400 INVALID_ARGUMENT Field=message"),
    ("over-quota-7-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=7"),
    ("over-device-quota-7-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED Quota=device retry-after=7"),
    ("dead-1", "404 NOT_FOUND Fcm=UNREGISTERED"),
    ("dead404apns-1", "404 NOT_FOUND Apns=410,Unregistered Fcm=UNREGISTERED"),
    ("apnsgone-1", "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT Apns=410,Unregistered"),
    ("invalid-1", "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT"),
    ("invalid-field-1", "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT Field=message.token"),
    ("invalid-field-first-1", "400 INVALID_ARGUMENT Field=message.token Fcm=INVALID_ARGUMENT"),
    ("suspect-1", "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT"),
    ("foreign-1", "403 PERMISSION_DENIED Fcm=SENDER_ID_MISMATCH"),
    ("payload-1", "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT Field=message.android.ttl"),
    ("badjson-1", "400 INVALID_ARGUMENT Field=message.data[0].value"),
    ("nodetails400-1", "400 INVALID_ARGUMENT"),
    ("hostile-1", "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT Field=message.data[0].value"),
    ("hostilecut-1", "400 INVALID_ARGUMENT Fcm=INVALID_ARGUMENT Field=message.data[0].value"),
    ("iam-1", "403 PERMISSION_DENIED"),
    ("apidisabled-1", "403 PERMISSION_DENIED"),
    ("noproject-1", "404 NOT_FOUND"),
    ("thirdparty-1", "401 UNAUTHENTICATED Fcm=THIRD_PARTY_AUTH_ERROR Apns=403,InvalidProviderToken"),
    ("expired401-1", "401 UNAUTHENTICATED Info=ACCESS_TOKEN_EXPIRED,googleapis.com"),
    ("bare401-1", "401 UNAUTHENTICATED"),
    ("quota-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED"),
    ("quota-3-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=3"),
    ("quotadate-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED"),
    ("quotahuge-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=99999999999999999999"),
    ("quotanegative-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=-5"),
    ("quotafraction-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=1.5"),
    ("quotagarbage-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=soon"),
    ("quotapast-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=Wed, 21 Oct 2015 07:28:00 GMT"),
    ("quotatwo-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after=3 retry-after=50"),
    ("quotaempty-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED retry-after="),
    ("devicequota-60-1", "429 RESOURCE_EXHAUSTED Fcm=QUOTA_EXCEEDED Quota=device retry-after=60"),
    ("quotahtml-2-1", "429 html <!DOCTYPE html>\n<html lang=en> retry-after=2"),
    ("quota503-1", "503 UNAVAILABLE Fcm=QUOTA_EXCEEDED"),
    ("ratelimit403-1", "403 PERMISSION_DENIED Info=RATE_LIMIT_EXCEEDED,googleapis.com"),
    ("unavailable-1", "503 UNAVAILABLE Fcm=UNAVAILABLE"),
    ("unavailable-2-1", "503 UNAVAILABLE Fcm=UNAVAILABLE retry-after=2"),
    ("unavailabledate-1", "503 UNAVAILABLE Fcm=UNAVAILABLE"),
    ("unavailablepast-1", "503 UNAVAILABLE Fcm=UNAVAILABLE retry-after=Wed, 21 Oct 2015 07:28:00 GMT"),
    ("unavailablehuge-1", "503 UNAVAILABLE Fcm=UNAVAILABLE retry-after=99999999999999999999"),
    ("unavailablenegative-1", "503 UNAVAILABLE Fcm=UNAVAILABLE retry-after=-5"),
    ("unavailablefraction-1", "503 UNAVAILABLE Fcm=UNAVAILABLE retry-after=1.5"),
    ("unavailablegarbage-1", "503 UNAVAILABLE Fcm=UNAVAILABLE retry-after=soon"),
    ("unavailabletwo-1", "503 UNAVAILABLE Fcm=UNAVAILABLE retry-after=3 retry-after=50"),
    ("unavailableempty-1", "503 UNAVAILABLE Fcm=UNAVAILABLE retry-after="),
    ("internal-1", "500 INTERNAL Fcm=INTERNAL"),
    ("unspecified-1", "500 UNKNOWN Fcm=UNSPECIFIED_ERROR"),
    ("unknowncode-1", "400 INVALID_ARGUMENT Fcm=FLUX_CAPACITOR_EMPTY"),
    ("unknowncode404-1", "404 NOT_FOUND Fcm=FLUX_CAPACITOR_EMPTY"),
    ("unknowncode500-1", "500 INTERNAL Fcm=FLUX_CAPACITOR_EMPTY"),
    ("oldtype404-1", "404 NOT_FOUND Old=UNREGISTERED"),
    ("othertype404-1", "404 NOT_FOUND Other=UNREGISTERED"),
    ("barestring-1", "400 json {\"error\":\"InvalidRegistration\""),
    ("errornull-1", "400 json {\"error\":null}"),
    ("errorarray-1", "400 json {\"error\":[]}"),
    ("nostatus404-1", "404 json {\"error\":{}}"),
    ("codestring404-1", "404 json {\"error\":{\"code\":\"404\",\"status"),
    ("detailsobject404-1", "404 json {\"error\":{\"code\":404,\"status\":"),
    ("detailsstring404-1", "404 NOT_FOUND Text=UNREGISTERED"),
    ("codenumber404-1", "404 NOT_FOUND Fcm="),
    ("utf8broken404-1", "404 NOT_FOUND Fcm=UNREGISTERED"),
    ("html200-1", "200 html <!DOCTYPE html>\n<html lang=en>"),
    ("html401-1", "401 html <!DOCTYPE html>\n<html lang=en>"),
    ("html403-1", "403 html <!DOCTYPE html>\n<html lang=en>"),
    ("html404-1", "404 html <!DOCTYPE html>\n<html lang=en>"),
    ("html502-1", "502 html <!DOCTYPE html>\n<html lang=en>"),
    ("html503-1", "503 html <!DOCTYPE html>\n<html lang=en>"),
    ("html504-1", "504 html <!DOCTYPE html>\n<html lang=en>"),
    ("huge502-1", "502 html <p>sorry</p><p>sorry</p><p>sor"),
    ("big503-1", "503 html <p>sorry</p><p>sorry</p><p>sor"),
    ("big200-1", "200 json [\"padding!\"]\n[\"padding!\"]\n[\"pa"),
    ("deep200-1", "200 json [[[[[[[[[[[[[[[[[[[[[[[[[[[[[["),
    ("empty200-1", "200 json"),
    ("empty401-1", "401 json"),
    ("empty404-1", "404 json"),
    ("empty500-1", "500 json"),
    ("empty503-1", "503 json"),
    ("noname200-1", "200 json {}"),
    ("nonstring200-1", "200 json {\"name\":7}"),
    ("array200-1", "200 json []"),
    ("string200-1", "200 json \"ok\""),
    ("number200-1", "200 json 7"),
    ("null200-1", "200 json null"),
    ("nullname200-1", "200 json {\"name\":null}"),
    ("emptyname200-1", "200 json {\"name\":\"\"}"),
    ("objectname200-1", "200 json {\"name\":{}}"),
    ("twice200-1", "200 json {\"name\":\"projects/p/messages/1"),
    ("utf8broken200-1", "200 json {\"name\":\"projects/\u{fffd}\u{fffd}\"}"),
    ("truncated-1", "200 json {\"name\":\"projects/p/mess"),
    ("truncated404-1", "404 json {\"error\":{\"code\":404,\"status\":"),
    ("shortbody-1", "200 then reset PROTOCOL_ERROR"),
    ("redirect302-1", "302 html <!DOCTYPE html>\n<html lang=en> location=/v1/elsewhere"),
    ("redirect301-1", "301 html <!DOCTYPE html>\n<html lang=en> location=https://fcm.example.com/v1/elsewhere"),
    ("redirect307-1", "307 html <!DOCTYPE html>\n<html lang=en> location=/v1/elsewhere"),
    ("redirect308-1", "308 html <!DOCTYPE html>\n<html lang=en> location=/v1/projects/demo-project/messages:send"),
    ("method405-1", "405 html <!DOCTYPE html>\n<html lang=en>"),
    ("oversize413-1", "413 html <!DOCTYPE html>\n<html lang=en>"),
    ("refused-1", "reset REFUSED_STREAM"),
    ("reset-1", "reset INTERNAL_ERROR"),
    ("cancelled-1", "reset CANCEL"),
    ("rst-7-1", "reset REFUSED_STREAM"),
    ("cut-1", "200 then reset INTERNAL_ERROR"),
];

#[tokio::test]
async fn every_scripted_answer_is_on_the_wire_as_the_table_says() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    for (token, want) in ON_THE_WIRE {
        assert_eq!(line(&send(&client, token).await), *want, "{token}");
    }
    // One connection for all of them: resets end a stream, not its connection.
    let stats = emulator.stats();
    assert_eq!((stats.connections_opened, stats.accepted), (1, 0));
    // What is taken, never answered or ends the connection has tests of its own.
    let elsewhere = [
        "ok",
        "slow",
        "hang",
        "lost",
        "held",
        "stall",
        "drip",
        "endless",
        "lostrst",
        "fin",
        "lostfin",
        "tcprst",
        "losttcprst",
        "hostilefield",
        "hostilestatus",
        "hostilebig",
        "text200",
        "gzip200",
    ];
    for (name, _) in answers().filter(|(name, _)| !elsewhere.contains(name)) {
        assert!(stats.answers.contains_key(name), "no line for `{name}`");
    }
}

#[tokio::test]
async fn any_other_token_is_accepted_under_a_name_of_its_own() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    let mut seen = std::collections::HashSet::new();
    for token in ["ok-1", "cXyzzy:APA91bPlugh", "dead", "ok-1"] {
        let answer = send(&client, token).await.unwrap();
        assert_eq!(answer.status, 200);
        let name = answer.json()["name"].as_str().unwrap().to_owned();
        assert!(name.starts_with("projects/demo-project/messages/"), "{name}");
        assert!(seen.insert(name));
    }
}

#[tokio::test]
async fn a_retry_after_date_lies_in_the_future_by_the_number_asked_for() {
    let emulator = open_to_all();
    let answer = send(&connect(&emulator).await, "quotadate-90-1").await.unwrap();
    let date = httpdate::parse_http_date(answer.headers["retry-after"].to_str().unwrap()).unwrap();
    let ahead = date.duration_since(SystemTime::now()).unwrap().as_secs();
    assert!((60..=90).contains(&ahead), "{ahead}");
}

#[tokio::test]
async fn a_request_without_an_answer_is_in_the_log_all_the_same() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    let hanging = tokio::spawn({
        let client = client.clone();
        async move { post(&client, SEND, "", goal("hang-1")).await }
    });
    timeout(LONG, emulator.logged(1)).await.expect("the log comes before the answer");
    let log = emulator.log();
    assert_eq!((log[0].answer.as_str(), log[0].status, log[0].accepted), ("hang", 0, false));
    assert_eq!(emulator.stats().streams_open, 1);
    assert!(timeout(SILENCE, hanging).await.is_err(), "hang- was answered");
}

#[tokio::test]
async fn an_answer_that_stalls_gives_its_header_and_nothing_else() {
    let emulator = open_to_all();
    let mut client = connect(&emulator).await.ready().await.unwrap();
    let request = Request::post(format!("http://emulator{SEND}")).body(()).unwrap();
    let (response, mut stream) = client.send_request(request, false).unwrap();
    stream.send_data(goal("stall-1"), true).unwrap();
    let response = timeout(LONG, response).await.unwrap().unwrap();
    assert_eq!(response.status(), 200);
    assert!(timeout(SILENCE, response.into_body().data()).await.is_err());
}

#[tokio::test]
async fn a_flaky_token_fails_once_for_each_message() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    for _ in 0..3 {
        let _ = send(&client, "flaky503-1").await.unwrap();
    }
    let corner = json!({"message": {"token": "flaky503-1", "notification": {"title": "Corner"}}});
    let _ = post(&client, SEND, "", corner.to_string().into()).await.unwrap();
    assert_eq!(names(&emulator.log()), ["unavailable", "ok", "ok", "unavailable"]);
    let attempts: Vec<u32> = emulator.log().iter().map(|entry| entry.attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 1]);
    assert_eq!((emulator.stats().accepted, emulator.stats().duplicates_accepted), (2, 1));
}

#[tokio::test]
async fn an_answer_in_another_dress_was_taken_all_the_same() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    let plain = line(&send(&client, "text200-1").await);
    assert_eq!(plain, "200 plain {\"name\":\"projects/p/messages/1");
    let packed = send(&client, "gzip200-1").await.unwrap();
    assert_eq!((packed.status.as_u16(), &packed.headers["content-encoding"]), (200, &"gzip".parse().unwrap()));
    // The magic of gzip, and a body whose length and checksum (its last eight bytes) are those of the name.
    let body = packed.body.unwrap();
    assert_eq!((&body[..3], &body[body.len() - 4..]), (&[0x1f, 0x8b, 8][..], &32u32.to_le_bytes()[..]));
    assert_eq!((emulator.stats().accepted, emulator.log()[1].accepted), (2, true));
}

#[tokio::test]
async fn a_big_answer_is_as_big_as_it_says() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    for token in ["big503-1", "big200-1"] {
        let body = send(&client, token).await.unwrap().body.unwrap();
        assert!((5_000_000..6_000_000).contains(&body.len()), "{token}: {}", body.len());
    }
}
