<?php

// Holds a key until it is killed: `php held.php hold|schedule|worker PREFIX FILE`, or a web request with these
// as parameters. Writes its process id and its key into the file when it has it.

declare(strict_types=1);

require __DIR__ . '/../../clients/php/tests/bootstrap.php';
require __DIR__ . '/../../clients/php/tests/scheduler.php';

use Illuminate\Console\Scheduling\Schedule;
use Lockkeeper\Laravel\WithoutOverlapping;
use Lockkeeper\LockClient;
use Lockkeeper\Tests\Scheduler;

// The key would stay taken for so long if nobody gave it back.
const TTL = 3600.0;

[, $what, $prefix, $file] = $argv ?? [null, 'hold', $_SERVER['PREFIX'], $_SERVER['FILE']];
putenv('LOCKKEEPER_URL=' . ($_SERVER['LOCKKEEPER_URL'] ?? getenv('LOCKKEEPER_URL')));
$what($prefix);

function hold(string $prefix): void
{
    $lease = (new LockClient((string) getenv('LOCKKEEPER_URL')))->hold("{$prefix}hold", TTL);
    works($lease->key());
}

function schedule(string $prefix): void
{
    $app = Scheduler\application($prefix, '', TTL);
    $schedule = new Schedule();
    $task = $schedule->call(function () use (&$task, $prefix): void {
        works($prefix . $task->mutexName());
    })->name('task')->withoutOverlapping();
    Scheduler\run($app, $schedule);
}

function worker(string $prefix): void
{
    Scheduler\Job::$does = fn () => works("{$prefix}laravel-queue-overlap:shared:7");
    $through = (new WithoutOverlapping('7', ttl: TTL))->shared();
    Scheduler\work(Scheduler\application($prefix, ''), new Scheduler\Job([$through]));
}

function works(string $key): void
{
    file_put_contents("{$GLOBALS['file']}.part", getmypid() . " $key");
    rename("{$GLOBALS['file']}.part", $GLOBALS['file']);
    sleep(600);
}
