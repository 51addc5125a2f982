//! Owns the story of an import beside events: a million devices come in while events trickle.

use std::fmt::Write;
use std::time::Duration;

use fanfare::client::Client;
use fanfare::wire::Format;

use tokio_util::sync::CancellationToken;

use crate::load::{Offer, Rate, offer, told};
use crate::service::own_postgres::OwnPostgres;
use crate::service::{Service, Wanted};

/// Rows of one part.
const PART: u64 = 20_000;
/// Events per second beside it.
const TRICKLE: f64 = 20.0;

fn part(first: u64, rows: u64) -> Vec<u8> {
    let mut text = String::from("id,user_id,token,platform,locale,follows,muted\n");
    for n in first..rows.min(first + PART) {
        // As long as a token of FCM is.
        let token = format!("{:016x}{n:0>120}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let _ = writeln!(text, "d{n:08},u{n},{token},android,pt-BR,team:t{}|player:p{},", n % 400, n % 9_973);
    }
    text.into_bytes()
}

/// No part is begun after this time.
const LONGEST: Duration = Duration::from_secs(120);

/// Imports `rows` devices, part by part, or as many as there is time for; how many, and how long it took.
async fn import(service: &Service, rows: u64) -> (u64, Duration) {
    let begun = tokio::time::Instant::now();
    let mut done = 0;
    let client = Client::new(&format!("http://{}", service.target.api), service.target.key.clone().into()).unwrap();
    while done < rows && begun.elapsed() < LONGEST {
        let first = done;
        let part = tokio::task::spawn_blocking(move || part(first, rows)).await.unwrap();
        let answer = client.import_part(Format::Csv, false, part).await.unwrap();
        assert_eq!(answer.rejected_total, 0);
        done = rows.min(first + PART);
        assert_eq!(answer.imported, done - first, "every row is a new device");
    }
    (done, begun.elapsed())
}

/// Posts events for `calm` with nothing beside them, then as long as an import of `rows` takes.
pub async fn measure(server: &OwnPostgres, rows: u64, calm: Duration) -> Vec<String> {
    let service = Service::start(Wanted { commit: Duration::ZERO, places: 0 }, server).await;
    let trickle = |lasts| Offer {
        rate: Rate::Open(TRICKLE),
        lasts,
        stop: CancellationToken::new(),
        stubborn: false,
        in_time: Duration::MAX,
    };
    let quiet = offer(&service.target, trickle(calm), "events alone").await;
    told(&quiet);
    let beside = trickle(Duration::from_secs(3600));
    let stop = beside.stop.clone();
    let importing = async {
        let done = import(&service, rows).await;
        stop.cancel();
        done
    };
    let (beside, (rows, took)) = tokio::join!(offer(&service.target, beside, "events beside an import"), importing);
    told(&beside);
    println!(
        "99 in 100 events took {:?} beside the import, {:?} alone (twice that wanted)",
        beside.accepted_in.p99, quiet.accepted_in.p99
    );
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM device")
        .fetch_one(&mut service.database.connection().await)
        .await
        .unwrap();
    println!("{rows} devices in {:.0} s, {:.0} a second", took.as_secs_f64(), rows as f64 / took.as_secs_f64());
    let mut wrong = Vec::new();
    let strange = quiet.strange + beside.strange;
    if beside.accepted_in.p99 > 2 * quiet.accepted_in.p99 || !beside.refused_in.p99.is_zero() || strange > 0 {
        wrong.push(format!(
            "99 in 100 events took {:?} beside an import and {:?} alone, some were refused, or {strange} were neither \
             accepted nor refused",
            beside.accepted_in.p99, quiet.accepted_in.p99
        ));
    }
    if u64::try_from(kept) != Ok(rows) || rows == 0 {
        wrong.push(format!("{rows} devices were imported, and the database has {kept}"));
    }
    wrong
}
