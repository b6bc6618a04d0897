<?php

// What applications do with clients/php/legacy/lockkeeper.php, on PHP 7.2 and newer.
// Usage: php legacy.php SCENARIO URL [KEY [WAIT [API_KEY [PATIENCE]]]]

declare(strict_types=1);

require __DIR__ . '/../../clients/php/legacy/lockkeeper.php';

[, $scenario, $url, $key, $wait, $api_key, $patience] = $argv + [3 => 'key', '0', '', '10'];
$locks = new Lockkeeper($url, $api_key === '' ? null : $api_key, '', (float) $patience);
$scenario($locks, $key, (float) $wait, $url);

function verbs(Lockkeeper $locks): void
{
    $lease = $locks->acquire('verbs', 50, 0, 'php');
    same('verbs', $lease->key, 'its key');
    same(true, between(40, $lease->remaining(), 50), 'what remains');
    same(true, $lease->isMine(), 'mine');
    same(null, $locks->acquire('verbs'), 'a held key');
    $lease->refresh(90);
    same(true, between(80, $lease->remaining(), 90), 'what remains after a refresh to 90 s');
    $lease->refresh();
    same(true, between(80, $lease->remaining(), 90), 'what remains after another refresh');
    $lease->refresh(9);
    same(true, between(70, $lease->remaining(), 90), 'what remains after a refresh to 9 s');
    same(true, $lease->release(), 'release');
    same(0.0, $lease->remaining(), 'what remains after a release');
    same(false, $lease->release(), 'release again');
    same(false, $lease->isMine(), 'mine after a release');
    same(LockkeeperLost::class, thrown([$lease, 'refresh']), 'refresh after a release');

    $next = $locks->acquire('verbs', 5);
    same(true, $next->fencingToken > $lease->fencingToken, 'a fencing token that rises');
    same(true, $locks->forceRelease('verbs'), 'forced release');
    same(false, $locks->forceRelease('verbs'), 'forced release of a free key');
    same(true, $next->remaining() > 0, 'what remains after a forced release, which nobody told');
    same(LockkeeperLost::class, thrown([$next, 'refresh']), 'refresh after a forced release');
    same(0.0, $next->remaining(), 'what remains after the loss is known');
    same(false, $next->release(), 'release of what was lost');
    echo 'as it has to be';
}

/** Semaphores, readers and writers. */
function sharing(Lockkeeper $locks): void
{
    $all = [];
    foreach ([1, 2] as $slot) {
        $all[$slot] = $locks->acquire('api', 50, 0, null, ['slots' => 2]);
        same($slot, $all[$slot]->slot, 'its slot');
    }
    same(null, $locks->acquire('api', 50, 0, null, ['slots' => 2]), 'a third of two');
    same(null, $locks->acquire('api'), 'a shared key');
    $all[1]->refresh(90);
    same([1, true], [$all[1]->slot, between(80, $all[1]->remaining(), 90)], 'its slot after a refresh');
    same(true, $all[1]->release(), 'release');
    $next = $locks->acquire('api', 50, 0, null, ['slots' => 2]);
    same(1, $next->slot, 'the free slot');
    same([true, true], [$next->release(), $all[2]->release()], 'release of both');

    $readers = [];
    foreach ([1, 2, 3] as $number) {
        $readers[] = $locks->acquire('page', 50, 0, null, ['shared' => true]);
        same([true, null], [$readers[0]->isMine(), $readers[0]->slot], "reader $number");
    }
    same(null, $locks->acquire('page'), 'a writer beside readers');
    $readers = [];
    $writer = $locks->acquire('page', 50, 0, null, ['shared' => false, 'slots' => null]);
    same(null, $writer->slot, 'the slot of a writer');
    same(null, $locks->acquire('page', 50, 0, null, ['shared' => true]), 'a reader beside a writer');

    foreach ([['slots' => 2, 'shared' => true], ['slot' => 2], ['slots' => '2']] as $options) {
        foreach (['acquire', 'hold'] as $verb) {
            $call = function () use ($locks, $verb, $options): void {
                $locks->$verb('free', 50, 0, null, $options);
            };
            same(InvalidArgumentException::class, thrown($call), json_encode($options));
        }
    }
    same(LockkeeperRefused::class, thrown(function () use ($locks): void {
        $locks->acquire('free', 50, 0, null, ['slots' => 0]);
    }), 'no slots');
    echo 'as it has to be';
}

/** Shared leases that another process refreshes. */
function held_sharing(Lockkeeper $locks): void
{
    $all = [];
    foreach ([1, 2] as $slot) {
        $all[$slot] = $locks->hold('api', 5, 0, null, ['slots' => 2]);
        same([$slot, true], [$all[$slot]->slot, $all[$slot]->isMine()], 'its slot');
    }
    same(null, $locks->hold('api', 5, 0, null, ['slots' => 2]), 'a third of two');
    sleep(6);
    same([true, true], [$all[1]->release(), $all[2]->release()], 'release of both');
    echo 'as it has to be';
}

/** A lease that outlasts its TTL; it is told of a loss. */
function held(Lockkeeper $locks, string $key): void
{
    $lease = $locks->hold($key, 6);
    same(null, $locks->hold($key), 'a held key');
    sleep(8);
    same(true, $lease->isMine(), 'mine');
    same(true, between(0.001, $lease->remaining(), 6), 'what remains');
    same(true, $lease->release(), 'release');
    same([false, 0.0, false], [$lease->isMine(), $lease->remaining(), $lease->release()], 'after a release');
    $next = $locks->hold($key, 2);
    $locks->forceRelease($key);
    same([false, 0.0, false], [$next->isMine(), $next->remaining(), $next->release()], 'after a loss');
    $failure = null;
    try {
        $locks->hold($key, 2, 0, '/no/such/php');
    } catch (LockkeeperUnavailable $failure) {
    }
    same('not_acquired', $failure->outcome, 'without a PHP');
    same(true, $locks->acquire($key, 2)->release(), 'a free key');
    echo 'as it has to be';
}

/** The other process has no file of this one, however many there are. */
function held_files(Lockkeeper $locks, string $key): void
{
    for ($own = []; count($own) < 20; $own[] = stream_get_meta_data($files[count($own)])['uri']) {
        $files[] = tmpfile();
    }
    $lease = $locks->hold($key);
    exec('pgrep -P ' . getmypid() . ' -f LockkeeperKeeper::run', $found);
    foreach ([getmypid() => 20, $found[0] => 0] as $process => $count) {
        $open = [];
        foreach (glob("/proc/$process/fd/*") as $file) {
            $open[] = @readlink($file); // That of the list itself is closed.
        }
        same($count, count(array_intersect($own, $open)), 'files');
    }
    echo 'as it has to be';
}

/** Killed with a lease of an hour, and with a forked child that lives on; says its key before. */
function killed(Lockkeeper $locks, string $key): void
{
    $lease = $locks->hold($key, 3600);
    if (pcntl_fork() === 0) {
        same([false, 0.0], [$lease->release(), $lease->remaining()], 'in a child');
        fclose(STDOUT);
        fclose(STDERR);
        sleep(20);
        posix_kill(getmypid(), SIGKILL);
    }
    echo $lease->isMine() ? 'held' : 'lost';
    posix_kill(getmypid(), SIGKILL);
}

/** Says what it got, and for how long it lasts at least; what the service knows of that is asked before. */
function acquire(Lockkeeper $locks, string $key, float $wait, string $url): void
{
    $lease = $locks->acquire($key, 3, $wait);
    if ($lease === null) {
        echo 'busy';
        return;
    }
    $left = json_decode(file_get_contents("$url/locks/$key"), true)['ttl_ms'] / 1000;
    same(true, between(max(0, $left - 2), $lease->remaining(), $left), "what remains of $left s");
    echo 'granted';
}

function look(Lockkeeper $locks, string $key): void
{
    echo $locks->acquire($key) === null ? 'busy' : 'free';
}

/** What a failure tells. */
function failing(Lockkeeper $locks, string $key, float $wait): void
{
    try {
        $lease = $locks->acquire($key, 3, $wait);
        echo $lease === null ? 'busy' : 'granted';
    } catch (LockkeeperUnavailable $failure) {
        echo "unavailable, $failure->outcome: ", $failure->getMessage();
    } catch (LockkeeperRefused $failure) {
        echo 'refused, ', $failure->getCode(), " $failure->problem: ", $failure->getMessage();
    } catch (LockkeeperException $failure) {
        echo get_class($failure), ': ', $failure->getMessage();
    }
}

/** A refresh that fails, and what remains. */
function refresh_failing(Lockkeeper $locks, string $key): void
{
    $lease = $locks->acquire($key, 60);
    try {
        $lease->refresh(5);
    } catch (LockkeeperException $failure) {
        echo get_class($failure), ", $failure->outcome, ", $lease->remaining() > 5 ? 'as before' : 'less';
    }
}

function refreshing_what_was_released(Lockkeeper $locks, string $key): void
{
    $lease = $locks->acquire($key, 60);
    $lease->release();
    echo thrown([$lease, 'refresh']), ', ', $lease->remaining(), ' s';
}

/** An acquire where every warning is an exception. */
function strict(Lockkeeper $locks, string $key): void
{
    set_error_handler(function (int $level, string $message): void {
        throw new ErrorException($message);
    });
    try {
        $locks->acquire($key, 2);
    } catch (LockkeeperException $failure) {
        echo 'a LockkeeperException: ', $failure->getMessage();
    }
}

/** The same with a refresh. */
function strict_refresh(Lockkeeper $locks, string $key): void
{
    $lease = $locks->acquire($key, 2);
    set_error_handler(function (int $level, string $message): void {
        throw new ErrorException($message);
    });
    try {
        $lease->refresh();
    } catch (LockkeeperException $failure) {
        echo 'a LockkeeperException, ', $lease->release() ? 'released' : 'not released';
    }
}

function secrets(Lockkeeper $locks, string $key, float $wait, string $url): void
{
    $lease = $locks->acquire($key, 60);
    $token = $lease->token();
    foreach ([$locks, $lease] as $object) {
        ob_start();
        var_dump($object);
        $shown = ob_get_clean() . print_r($object, true) . var_export($object, true) . json_encode($object);
        // What dumpers of frameworks look at.
        $shown .= print_r((array) $object, true) . print_r((new ReflectionObject($object))->getProperties(), true);
        same(false, strpos($shown, $token), 'the token');
        same(false, strpos($shown, 'the-api-key'), 'the API key');
        same(LogicException::class, thrown(function () use ($object) {
            serialize($object);
        }), 'serialize');
        same(Error::class, thrown(function () use ($object) {
            return clone $object;
        }), 'clone');
    }
    same(true, $lease->release(), 'release');
    foreach ([["a\n", ''], ["a\r\nEvil: yes", ''], [null, "a\n"]] as list($api_key, $prefix)) {
        same(InvalidArgumentException::class, thrown(function () use ($url, $api_key, $prefix) {
            new Lockkeeper($url, $api_key, $prefix);
        }), 'a line in a header');
    }
    echo 'as it has to be';
}

function endless_patience(Lockkeeper $locks, string $key, float $wait, string $url): void
{
    $locks = new Lockkeeper($url, null, '', INF);
    echo $locks->acquire($key, 3) === null ? 'busy' : 'granted';
}

/** What is wrong with the options, or the key. */
function refusals(Lockkeeper $locks): void
{
    foreach (['a//b', '/a', 'a/', '.', 'a/../b', ''] as $key) {
        same('400 invalid_key', refused($locks, $key, 30), "key '$key'");
    }
    same('400 invalid_key', refused($locks, "a\nb", 30), 'a key with a line feed');
    same('400 invalid_key', refused($locks, "a\n/..", 30), 'one with a line feed that is not sent');
    same('400 invalid_request', refused($locks, 'key', 0.001), 'a TTL that is too short');
    same('405 method_not_allowed', refused($locks, 'a/refresh', 30), 'a key that no key may be');
    echo 'as it has to be';
}

/** A refresh to much more, and a release, whatever happens to either. */
function keeping(Lockkeeper $locks, string $key): void
{
    $lease = $locks->acquire($key, 10);
    try {
        $lease->refresh(60);
        echo 'refreshed, ', $lease->remaining() > 30 ? 'anew' : 'not anew';
    } catch (LockkeeperException $failure) {
        echo get_class($failure);
    }
    echo ', ', $lease->release() ? 'released' : 'not released';
}

function dropped(Lockkeeper $locks, string $key): void
{
    $lease = $locks->acquire($key, 60);
    $lease = null;
    echo $locks->acquire($key, 60) === null ? 'busy' : 'free';
}

function ending(Lockkeeper $locks, string $key): void
{
    $GLOBALS['lease'] = $locks->acquire($key, 60);
    register_shutdown_function(function () {
        echo $GLOBALS['lease']->isMine() ? 'mine at the end' : 'given back too early';
    });
    exit;
}

function failing_to_catch(Lockkeeper $locks, string $key): void
{
    $lease = $locks->acquire($key, 60);
    print_r($lease);
    var_dump($lease);
    var_export($lease);
    throw new RuntimeException("under $lease->key");
}

function circle(Lockkeeper $locks, string $key): void
{
    $circle = new stdClass();
    $circle->lease = $locks->acquire($key, 60);
    $circle->circle = $circle;
}

function out_of_memory(Lockkeeper $locks, string $key): void
{
    $lease = $locks->acquire($key, 60);
    ini_set('memory_limit', '32M');
    $all = null;
    while (true) {
        $all = [$all]; // Takes small pieces, until there is no room for some more.
    }
}

function much_out_of_memory(Lockkeeper $locks, string $key): void
{
    $lease = $locks->acquire($key, 60);
    ini_set('memory_limit', '32M');
    str_repeat('a', 1 << 30);
}

/** A child has nothing of its parent's lease; it ends in each way, and the lease lasts. */
function forked(Lockkeeper $locks, string $key): void
{
    $lease = $locks->acquire($key, 60);
    $child = pcntl_fork();
    if ($child === 0) {
        echo thrown([$lease, 'refresh']) === LockkeeperLost::class ? 'lost' : 'refreshed';
        echo $lease->release() ? ', released, ' : ', not released, ', $lease->remaining(), ' s; ';
        exit;
    }
    pcntl_waitpid($child, $status);
    foreach (['exit', 'null'] as $way) {
        $child = pcntl_fork();
        if ($child === 0) {
            $lease = $way === 'null' ? null : $lease;
            exit;
        }
        pcntl_waitpid($child, $status);
    }
    echo $lease->isMine() ? 'mine' : 'lost', $lease->release() ? ', released' : ', not released';
}

function refused(Lockkeeper $locks, string $key, float $ttl): string
{
    try {
        $locks->acquire($key, $ttl);
    } catch (LockkeeperRefused $failure) {
        same(false, strpos($failure->getMessage(), "\n"), 'a message on two lines');
        return $failure->getCode() . ' ' . $failure->problem;
    }
    return 'not at all';
}

function thrown(callable $work): string
{
    try {
        $work();
    } catch (Throwable $failure) {
        return get_class($failure);
    }
    return 'nothing';
}

function between(float $least, float $value, float $most): bool
{
    return $least <= $value && $value <= $most;
}

function same($expected, $actual, string $what): void
{
    if ($expected !== $actual) {
        echo "$what: not ", var_export($expected, true), ' but ', var_export($actual, true);
        exit(1);
    }
}
