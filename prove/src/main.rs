//! `prove`: a campaign, one run, or a check of a stored history.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use prove::campaign::Trial;
use prove::campaign::binary;
use prove::servers::Store;

const USAGE: &str = "usage: prove | prove run STORE SECONDS SEED | prove check FILE";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["run", store, seconds, seed] => run(store, seconds, seed),
        _ => Err(io::Error::other(USAGE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(store: &str, seconds: &str, seed: &str) -> io::Result<()> {
    let usage = || io::Error::other(USAGE);
    let seed = seed.parse().map_err(|_| usage())?;
    let trial = Trial {
        store: Store::of(store).ok_or_else(usage)?,
        lasts: Duration::from_secs(seconds.parse().map_err(|_| usage())?),
        seed,
        binary: binary()?,
        directory: Path::new("target/prove").join(seed.to_string()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let lines = runtime.block_on(trial.run())?;
    println!("{} lines", lines.len());
    Ok(())
}
