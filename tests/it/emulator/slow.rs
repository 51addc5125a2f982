//! Answers that take their time: held, dripping, without end, and those that never say what became of the message.

use super::*;

#[tokio::test]
async fn a_held_answer_comes_when_it_is_released_and_the_message_was_taken_at_once() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    let held = tokio::spawn(async move { futures_util::join!(send(&client, "held-1"), send(&client, "held-2")) });
    timeout(LONG, emulator.logged(2)).await.unwrap();
    assert_eq!((emulator.stats().accepted, emulator.stats().streams_open), (2, 2));
    emulator.control(&Control { release: true, ..Control::default() }).unwrap();
    let (one, two) = timeout(LONG, held).await.unwrap().unwrap();
    assert_eq!((one.unwrap().status, two.unwrap().status), (StatusCode::OK, StatusCode::OK));
}

#[tokio::test]
async fn a_dripping_answer_comes_byte_by_byte_and_is_whole_in_the_end() {
    let emulator = open_to_all();
    let mut client = connect(&emulator).await.ready().await.unwrap();
    let request = Request::post(format!("http://emulator{SEND}")).body(()).unwrap();
    let (response, mut stream) = client.send_request(request, false).unwrap();
    stream.send_data(goal("drip-200-1"), true).unwrap();
    let begun = std::time::Instant::now();
    let mut body = timeout(LONG, response).await.unwrap().unwrap().into_body();
    let mut pieces = Vec::new();
    while let Some(piece) = timeout(LONG, body.data()).await.unwrap() {
        pieces.push(piece.unwrap());
    }
    let whole: Value = serde_json::from_slice(&pieces.concat()).unwrap();
    assert!(whole["name"].as_str().unwrap().contains("messages/"));
    assert!(pieces.iter().all(|piece| piece.len() < 10), "a slow reader may get a few at once: {pieces:?}");
    assert!(begun.elapsed() >= Duration::from_millis(5 * 40), "about 43 bytes, 5 ms each");
    assert_eq!(emulator.stats().accepted, 1);
}

#[tokio::test]
async fn an_endless_answer_goes_on_as_long_as_it_is_read() {
    let emulator = open_to_all();
    let mut client = connect(&emulator).await.ready().await.unwrap();
    let request = Request::post(format!("http://emulator{SEND}")).body(()).unwrap();
    let (response, mut stream) = client.send_request(request, false).unwrap();
    stream.send_data(goal("endless-1"), true).unwrap();
    let mut body = timeout(LONG, response).await.unwrap().unwrap().into_body();
    let mut read = 0;
    while read < 8 << 20 {
        let piece = timeout(LONG, body.data()).await.unwrap().expect("no end").unwrap();
        read += piece.len();
        body.flow_control().release_capacity(piece.len()).unwrap();
    }
    drop(body);
    let given_up = async {
        while emulator.stats().streams_open > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, given_up).await.expect("the end of the stream ends it");
    assert_eq!(emulator.stats().accepted, 0);
}

#[tokio::test]
async fn a_lost_answer_was_taken_and_a_hanging_one_was_not() {
    let emulator = open_to_all();
    let client = connect(&emulator).await;
    let silent = async |token: &str| timeout(SILENCE, post(&client, SEND, "", goal(token))).await.is_err();
    assert!(silent("lost-1").await && silent("hang-1").await);
    let accepted: Vec<bool> = emulator.log().iter().map(|entry| entry.accepted).collect();
    assert_eq!(accepted, [true, false]);
}
