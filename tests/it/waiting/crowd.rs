//! Ten thousand clients on one key: client and server in processes of their own, each with its
//! limit of descriptors.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::process::command;
use crate::support::{Process, Redis};
use crate::waiting::process;

const CROWD: u64 = 10_000;

const PATIENT: &[(&str, &str)] = &[
    ("LOCKKEEPER_LIMITS_MAX_WAIT", "10m"),
    ("LOCKKEEPER_LIMITS_IDLE_TIME", "10m"),
    // A busy machine is no store that does not answer.
    ("LOCKKEEPER_REDIS_COMMAND_TIMEOUT", "10s"),
    // All of them come from one address.
    ("LOCKKEEPER_LIMITS_CONNECTIONS_PER_ADDRESS", "20000"),
];

/// The most memory of a waiting client, in bytes; it takes 19 000, and with huge pages 33 000.
const MOST_MEMORY: u64 = 26_000;

/// How long the line is left idle to count what it costs.
const IDLE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_waiters_of_the_embedded_store_are_served_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let service = process(&format!("embedded:{}", directory.path().display()), PATIENT).await;
    crowd("embedded", &service, None, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_waiters_on_redis_are_served_in_order() {
    let redis = Redis::start();
    let service = process(&redis.url(), PATIENT).await;
    crowd("Redis", &service, Some(&redis), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn remaining_waiters_are_served_in_order_when_half_of_ten_thousand_are_reset() {
    let redis = Redis::start();
    let service = process(&redis.url(), PATIENT).await;
    crowd("Redis, half of them reset", &service, Some(&redis), CROWD / 2);
    drop(service);
    let directory = tempfile::tempdir().unwrap();
    let service = process(&format!("embedded:{}", directory.path().display()), PATIENT).await;
    crowd("embedded, half of them reset", &service, None, CROWD / 2);
}

fn crowd(name: &str, service: &Process, redis: Option<&Redis>, resets: u64) {
    let before = memory(service.pid());
    let port = service.http().address.port().to_string();
    let mut clients = command("python3")
        .args([concat!(env!("CARGO_MANIFEST_DIR"), "/tests/waiters.py"), &port])
        .args([CROWD.to_string(), resets.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(clients.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let each = (memory(service.pid()) - before) / CROWD;
    let idle = redis.map(calls_while_idle);
    let calls = redis.map(scripts_run);
    clients.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let told = lines.next().expect("the clients said why they ended").unwrap();
    assert!(clients.wait().unwrap().success());
    let told: Value = serde_json::from_str(&told).unwrap();
    eprintln!("{name}: {told}, {each} bytes of memory a waiter");
    assert!(each <= MOST_MEMORY, "{each} bytes of memory a waiter");
    assert_eq!(told["served"], CROWD - resets);
    assert_eq!((&told["in_order"], &told["left_over"]), (&true.into(), &false.into()), "{told}");
    if let (Some(redis), Some(calls), Some(idle)) = (redis, calls, idle) {
        // Those that were reset left with a call each, in which the line was looked at meanwhile.
        let each = (scripts_run(redis) - calls - resets) as f64 / (CROWD - resets) as f64;
        eprintln!("{name}: {each:.2} calls a hand-over, {idle:.1} calls a second while idle");
        assert!(each <= 3.0, "{each} calls a hand-over");
        assert!(idle <= 5.0, "{idle} calls a second");
    }
}

/// What a process has in memory, in bytes.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    resident.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024
}

fn calls_while_idle(redis: &Redis) -> f64 {
    let (began, before) = (Instant::now(), scripts_run(redis));
    while began.elapsed() < IDLE {
        std::thread::park_timeout(IDLE - began.elapsed());
    }
    (scripts_run(redis) - before) as f64 / began.elapsed().as_secs_f64()
}

fn scripts_run(redis: &Redis) -> u64 {
    let stats = redis.run::<String>("INFO commandstats");
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.and_then(|rest| rest.split(',').next()).unwrap().parse().unwrap()
}
