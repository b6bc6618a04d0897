//! Libraries that lock on Redis beside the service, set as the page's table says.

use crate::migration::{Block, KEY, PAGE, SETNX, Site, new};
use crate::readme::rows;
use crate::support::Script;
use crate::support::packages::{INTEROP, python, venv};

const LARAVEL: &str = "
    $lock = laravel($redis->getPort(), 1, OPTIONS)->lock('import', SECONDS);
    if (!$lock->get()) exit(\"not now\\n\");
    work();
    $lock->release();";

const SYMFONY: &str = "require 'Symfony/Component/Lock/autoload.php';
    use Symfony\\Component\\Lock\\LockFactory;
    use Symfony\\Component\\Lock\\Store\\RedisStore;
    $lock = (new LockFactory(new RedisStore($redis)))->createLock('import', 60);
    if (!$lock->acquire()) exit(\"not now\\n\");
    work();
    $lock->release();";

const REDIS_PY: &str = "
import redis
import sys
lock = redis.Redis(port=PORT).lock('import', timeout=TIMEOUT)
if not lock.acquire(blocking=False):
    sys.exit(print('not now'))
print('at work', flush=True)
sys.stdin.readline()
lock.release()
";

/// What the table says of a library.
struct Row {
    name: &'static str,
    key_prefix: &'static str,
}

/// The row that begins so.
fn row(library: &str) -> Row {
    let rows = rows(PAGE, "## Libraries");
    let row = rows.iter().find(|row| row[0].starts_with(library)).unwrap();
    let code = |cell: &'static str| cell.split('`').nth(1).unwrap_or_default();
    Row { name: code(row[1]), key_prefix: code(row[2]) }
}

/// A site with the prefix of that row.
fn site(row: &Row) -> Site {
    Site::start(&[("LOCKKEEPER_REDIS_KEY_PREFIX", row.key_prefix)])
}

/// What is under the row's name on Redis while the library's lock is held.
fn kind(site: &Site, row: &Row, library: &Script) -> String {
    let working = library.works();
    let kind = site.redis().run(&format!("TYPE {}", row.name));
    working.ends();
    kind
}

fn laravel(site: &Site, seconds: &str, options: &str) -> Script {
    with_laravel(site, &LARAVEL.replace("SECONDS", seconds).replace("OPTIONS", options))
}

fn with_laravel(site: &Site, text: &str) -> Script {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/php/laravel.php");
    Script::of("php", &site.php(&format!("require '{file}'; {text}")))
}

fn redis_py(site: &Site, timeout: &str) -> Script {
    let port = site.redis().port().to_string();
    let python = python(&venv(INTEROP)).display().to_string();
    Script::of(&python, &REDIS_PY.replace("PORT", &port).replace("TIMEOUT", timeout))
}

async fn excludes(site: &Site, library: &Script) {
    site.exclude_each_other([library, &site.script(new(SETNX))]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn laravel_and_the_service_exclude_each_other_however_phpredis_packs_the_value() {
    let row = row("Laravel");
    for options in [
        "[]",
        "['serializer' => Redis::SERIALIZER_IGBINARY]",
        "['serializer' => Redis::SERIALIZER_PHP, 'compression' => Redis::COMPRESSION_LZF]",
    ] {
        let site = site(&row);
        let library = laravel(&site, "60", options);
        assert_eq!(kind(&site, &row, &library), "string");
        excludes(&site, &library).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn laravels_cache_clear_ends_all_leases_in_the_database_of_the_cache() {
    let row = row("Laravel");
    let site = site(&row);
    for (cached, left) in [(1, true), (0, false)] {
        assert_eq!(site.http().post(KEY, "").await.status, 201);
        let flush = format!("laravel($redis->getPort(), {cached})->flush();");
        assert_eq!(with_laravel(&site, &flush).run(), (String::new(), Some(0)));
        assert_eq!(site.http().get(KEY).await.field("held"), left);
        site.http().delete("/admin/locks/import").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn symfony_and_the_service_exclude_each_other_by_a_sorted_set() {
    let row = row("Symfony Lock from 5.2");
    let site = site(&row);
    let library = site.script(Block { kind: "php", text: SYMFONY });
    assert_eq!(kind(&site, &row, &library), "zset");
    excludes(&site, &library).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_py_and_the_service_exclude_each_other() {
    let row = row("redis-py");
    let site = site(&row);
    let library = redis_py(&site, "60");
    assert_eq!(kind(&site, &row, &library), "string");
    excludes(&site, &library).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_a_library_without_an_end_tells_no_time_to_ask_again() {
    let (laravel_row, redis_py_row) = (row("Laravel"), row("redis-py"));
    let (with_laravel, with_redis_py) = (site(&laravel_row), site(&redis_py_row));
    for (site, library) in [
        (&with_laravel, laravel(&with_laravel, "0", "[]")),
        (&with_redis_py, redis_py(&with_redis_py, "None")),
    ] {
        drop(library.works());
        let refused = site.http().post(KEY, "").await;
        assert_eq!(refused.told(), (409, "lock_held".into()));
        assert_eq!(refused.json().get("retry_after_ms"), None);
    }
}
