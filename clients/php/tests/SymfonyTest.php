<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Symfony\LockkeeperStore;
use Symfony\Component\Lock\Exception\InvalidTtlException;
use Symfony\Component\Lock\Exception\LockAcquiringException;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Exception\LockReleasingException;
use Symfony\Component\Lock\Exception\LockStorageException;
use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\LockFactory;

final class SymfonyTest extends TestCase
{
    public function testALockIsHeldUntilItIsReleased(): void
    {
        $name = self::key();
        $lock = $this->factory()->createLock($name, 5);
        $other = $this->factory()->createLock($name, 5);
        self::assertTrue($lock->acquire());
        self::assertTrue($lock->acquire());
        self::assertLasts(5.0, $lock->getRemainingLifetime());
        self::assertFalse($other->acquire());
        self::assertSame([true, false], [$lock->isAcquired(), $other->isAcquired()]);
        $other->release();
        self::assertTrue($lock->isAcquired());
        $lock->refresh(60);
        self::assertLasts(60.0, $lock->getRemainingLifetime());
        self::assertLasts(60.0, $this->client()->inspect($name)->remaining);
        $lock->release();
        self::assertFalse($lock->isAcquired());
        self::assertTrue($other->acquire());
    }

    public function testALockEndsWithItsObjectUnlessItIsToldNotTo(): void
    {
        foreach ([true, false] as $autoRelease) {
            $lock = $this->factory()->createLock($name = self::key(), 30, $autoRelease);
            $lock->acquire();
            unset($lock);
            self::assertSame(!$autoRelease, $this->client()->inspect($name)->isHeld);
        }
    }

    public function testWhoBlocksWaitsInLineAtTheService(): void
    {
        $name = self::key();
        $this->factory()->createLock($name, 1.2, false)->acquire();
        $began = microtime(true);
        $waiting = $this->factory()->createLock($name, 5);
        self::assertTrue($waiting->acquire(true));
        self::assertTook(1.2, $began);
        $began = microtime(true);
        $bounded = $this->factory(maxWait: 0.5)->createLock($name);
        $this->thrown(LockConflictedException::class, fn () => $bounded->acquire(true));
        self::assertTook(0.5, $began);
    }

    public function testALockWithoutATtlHasTheInitialOne(): void
    {
        $lasts = function (float $initialTtl): float {
            $lock = $this->factory(initialTtl: $initialTtl)->createLock($name = self::key(), null);
            $lock->acquire();
            $known = $this->client()->inspect($name)->remaining + 0.001; // cut to milliseconds
            self::assertLessThanOrEqual($known, $lock->getRemainingLifetime());
            return round($lock->getRemainingLifetime());
        };
        self::assertSame([300.0, 3600.0], [$lasts(300), $lasts(INF)]);
        $this->thrown(InvalidTtlException::class, fn () => $this->factory(initialTtl: 0));
    }

    public function testALockThatIsLostConflicts(): void
    {
        $lock = $this->factory()->createLock($name = self::key(), 0.3);
        $lock->acquire();
        self::eventually(fn () => $lock->isExpired());
        self::eventually(fn () => !$lock->isAcquired());
        $this->thrown(LockConflictedException::class, fn () => $lock->refresh());
        $thief = $this->client()->acquire($name);
        $this->thrown(LockConflictedException::class, fn () => $lock->refresh());
        $lock->release();
        self::assertTrue($thief->release());
        self::assertTrue($lock->acquire());
    }

    public function testASerialisedKeyIsTheLockElsewhere(): void
    {
        $key = new Key($name = self::key());
        $lock = $this->factory()->createLockFromKey($key, 60, false);
        $lock->acquire();
        $code = '$store = new Lockkeeper\Symfony\LockkeeperStore($client);
            $key = unserialize(base64_decode($arguments[0]));
            $lock = (new Symfony\Component\Lock\LockFactory($store))->createLockFromKey($key, 60);
            $mine = $lock->isAcquired(); $lock->refresh(); $lock->release();
            echo json_encode([$mine, $lock->isAcquired(), $client->inspect((string) $key)->isHeld]);';
        self::assertSame([0, '[true,false,false]'], self::script($code, base64_encode(serialize($key))));
        self::assertFalse($lock->isAcquired());
    }

    /** @dataProvider names */
    public function testAResourceMayBeAnything(string $name, bool $isHashed): void
    {
        $prefix = self::key('');
        $store = new LockkeeperStore($this->client(), prefix: $prefix);
        $lock = (new LockFactory($store))->createLock($name, 5);
        self::assertTrue($lock->acquire());
        $same = (new LockFactory(new LockkeeperStore($this->client(), prefix: $prefix)))->createLock($name, 5);
        self::assertFalse($same->acquire());
        $lock->refresh();
        self::assertTrue($lock->isAcquired());
        $held = iterator_to_array($this->client()->list($prefix), false);
        self::assertSame($prefix . ($isHashed ? 'hashed/' . hash('sha256', $name) : $name), $held[0]->key);
        $lock->release();
        self::assertTrue($same->acquire());
    }

    public function names(): array
    {
        $fit = ['invoice/42', 'App\Job:7', 'Zürich ☃', '%2F', 'refresh/a', 'a b+c', str_repeat('a', 400)];
        $unfit = ['', '/', 'a//b', 'a/', '../a', 'a/./b', "line\nfeed", "\0", "\xff\xfe", "\u{85}"];
        $unfit = [...$unfit, 'refresh', 'a/refresh', str_repeat('ü', 300)];
        $named = fn (bool $isHashed) => fn ($name) => [$name, $isHashed];
        return [...array_map($named(false), $fit), ...array_map($named(true), $unfit)];
    }

    public function testAServiceThatIsAwayIsNoConflict(): void
    {
        $store = new LockkeeperStore($this->client('http://127.0.0.1:1', patience: 0.1));
        $lock = (new LockFactory($store))->createLock('report', 5, false);
        $failure = $this->thrown(LockAcquiringException::class, fn () => $lock->acquire());
        self::assertStringContainsString('no answer from http://127.0.0.1:1', $failure->getPrevious()->getMessage());
        $this->thrown(LockAcquiringException::class, fn () => $lock->acquire(true));
        $this->thrown(LockAcquiringException::class, fn () => $lock->refresh());
        $this->thrown(LockReleasingException::class, fn () => $lock->release());
        $this->thrown(LockStorageException::class, fn () => $lock->isAcquired());
        $this->thrown(LockStorageException::class, fn () => $store->putOffExpiration(new Key('report'), 5));
    }

    private function factory(mixed ...$options): LockFactory
    {
        return new LockFactory(new LockkeeperStore($this->client(), ...$options));
    }
}
