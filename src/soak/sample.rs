//! Owns the looks at the instances while a day is played: memory, file descriptors, tasks, mode and pace; and how late
//! the machine itself is.
//! Must never know: what they should be.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::fleet::{Seat, Seats};
use super::observed::{Sample, Usage};
use crate::emulator::Emulator;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(500);
/// Between two looks at the requests in flight.
const CROWD: Duration = Duration::from_millis(100);
/// Longest wait for an answer: an instance that drains or starts is looked at the next time.
const ANSWER: Duration = Duration::from_millis(800);
/// More than any page of metrics.
const LARGEST: u64 = 1 << 20;
/// Between two looks at the machine's own lateness.
const TICK: Duration = Duration::from_millis(20);
/// Lateness that means nothing, ms.
const USUAL_MS: u64 = 5;

/// Looks at all instances again and again. Never ends.
pub async fn watch(seats: &Seats, begun: Instant, samples: &mut Vec<Sample>) {
    loop {
        for seat in seats.all() {
            let at_ms = since(begun);
            let ceiling = timeout(ANSWER, seat.client.ceiling()).await.ok().and_then(Result::ok);
            let (mode, pace) = ceiling.map_or_else(Default::default, |c| (c.mode, c.pace));
            let usage = Usage { tasks: 0, ..usage(&seat) };
            samples.push(Sample { at_ms, seat: seat.seat, pid: seat.pid, usage, mode, pace });
        }
        sleep(EVERY).await;
    }
}

/// Notes when timers of this process come late. Never ends.
pub async fn lateness(begun: Instant, late: &mut Vec<(u64, u64)>) {
    loop {
        let due = Instant::now() + TICK;
        tokio::time::sleep_until(due).await;
        let by = u64::try_from(due.elapsed().as_millis()).unwrap_or(u64::MAX);
        if by > USUAL_MS {
            late.push((since(begun), by));
        }
    }
}

/// Notes how many requests are in flight at the provider. Never ends.
pub async fn crowd(emulator: &Emulator, begun: Instant, crowd: &mut Vec<(u64, u32)>) {
    loop {
        crowd.push((since(begun), emulator.stats().streams_open));
        sleep(CROWD).await;
    }
}

fn since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// What an instance uses now, its tasks among it.
pub async fn rest(seat: &Seat) -> Usage {
    let page = timeout(ANSWER, metrics(&seat.ops)).await.ok().and_then(Result::ok).unwrap_or_default();
    Usage { tasks: gauge(&page, "fanfare_tasks").unwrap_or(0), ..usage(seat) }
}

/// From `/proc`; zeros when the process has ended.
fn usage(seat: &Seat) -> Usage {
    let status = std::fs::read_to_string(format!("/proc/{}/status", seat.pid)).unwrap_or_default();
    let fds = std::fs::read_dir(format!("/proc/{}/fd", seat.pid)).map_or(0, |entries| entries.count() as u64);
    Usage { rss_kb: resident(&status), fds, tasks: 0 }
}

fn resident(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn gauge(page: &str, name: &str) -> Option<u64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// One request of HTTP/1.0: the answer ends with the connection.
async fn metrics(ops: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(ops).await?;
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {ops}\r\n\r\n").as_bytes()).await?;
    let mut page = String::new();
    stream.take(LARGEST).read_to_string(&mut page).await?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_and_gauges_are_read() {
        assert_eq!(resident("Name:\tfanfare\nVmRSS:\t   20480 kB\nThreads:\t4\n"), 20_480);
        assert_eq!(resident(""), 0);
        let page = "# HELP fanfare_tasks Tasks.\nfanfare_tasks 41\nfanfare_tasks_old 7\n";
        assert_eq!((gauge(page, "fanfare_tasks"), gauge(page, "fanfare_none")), (Some(41), None));
    }

    #[tokio::test]
    async fn this_process_uses_memory_and_files() {
        let client = crate::client::Client::new("http://127.0.0.1:1", "x".into()).unwrap();
        let seat = Seat { seat: 0, client, ops: String::new(), pid: std::process::id() };
        let used = usage(&seat);
        assert!(used.rss_kb > 1_000 && used.fds > 2, "{used:?}");
    }
}
