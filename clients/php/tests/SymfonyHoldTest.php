<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Symfony\LockkeeperHoldStore;
use PHPUnit\Framework\Attributes\DataProvider;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Exception\UnserializableKeyException;
use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\Lock;
use Symfony\Component\Lock\LockFactory;

/** Symfony locks that last while their process lives. */
final class SymfonyHoldTest extends TestCase
{
    public function testALockLastsBeyondItsTtlUntilItIsReleased(): void
    {
        $name = self::key();
        $lock = $this->factory(ttl: 6.0)->createLock($name, 0.5);
        self::assertTrue($lock->acquire());
        self::assertFalse($this->factory()->createLock($name)->acquire());
        self::assertTrue($lock->acquire());
        sleep(8);
        self::assertTrue($lock->isAcquired());
        self::assertFalse($lock->isExpired());
        $lock->refresh();
        $lock->release();
        self::assertFalse($lock->isAcquired());
        self::assertTrue($this->factory()->createLock($name)->acquire());
    }

    public function testALockEndsWithItsObjectAndAWaitHasAnEnd(): void
    {
        $name = self::key();
        $lock = $this->factory()->createLock($name);
        $lock->acquire();
        $wait = fn () => $this->factory(maxWait: 0.2)->createLock($name)->acquire(true);
        $this->thrown(LockConflictedException::class, $wait);
        unset($lock);
        self::assertTrue($wait());
    }

    public function testALossIsSeen(): void
    {
        $lock = $this->factory(ttl: 3.0)->createLock($name = self::key());
        $lock->acquire();
        $this->client()->forceRelease($name);
        self::eventually(fn () => !$lock->isAcquired());
        $this->thrown(LockConflictedException::class, fn () => $lock->refresh());
        $lock->release();
        self::assertTrue($lock->acquire());
    }

    public function testAKeyIsNotSerialised(): void
    {
        $key = new Key(self::key());
        $lock = new Lock($key, new LockkeeperHoldStore($this->client()));
        $lock->acquire();
        $this->thrown(UnserializableKeyException::class, fn () => serialize($key));
    }

    /** @dataProvider ends */
    #[DataProvider('ends')]
    public function testAKilledProcessFreesItsLockAndAForkedChildDoesNot(string $end): void
    {
        $name = self::key();
        [$process, $output] = self::start('
            $store = new Lockkeeper\Symfony\LockkeeperHoldStore($client, 3600);
            $lock = (new Symfony\Component\Lock\LockFactory($store))->createLock($arguments[0], 3600);
            $lock->acquire();
            $child = pcntl_fork();
            if ($child === 0) {
                unset($lock);
                echo json_encode($client->inspect($arguments[0])->isHeld), "\n";
                exit;
            }
            pcntl_waitpid($child, $status);
            ' . $end, $name);
        self::assertSame("true\n", fgets($output));
        proc_close($process);
        self::eventually(fn () => !$this->client()->inspect($name)->isHeld);
    }

    public static function ends(): array
    {
        return ['kill -9' => ['posix_kill(getmypid(), SIGKILL);'], 'the end' => ['']];
    }

    private function factory(float $ttl = 15.0, ?float $maxWait = null): LockFactory
    {
        return new LockFactory(new LockkeeperHoldStore($this->client(), $ttl, $maxWait));
    }
}
