<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Symfony\LockkeeperHoldStore;
use Symfony\Component\Console\Command\Command;
use Symfony\Component\Console\Tester\CommandTester;
use Symfony\Component\DependencyInjection\ServiceLocator;
use Symfony\Component\EventDispatcher\EventDispatcher;
use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Event\WorkerMessageFailedEvent;
use Symfony\Component\Messenger\Event\WorkerRunningEvent;
use Symfony\Component\Messenger\EventListener\SendFailedMessageForRetryListener;
use Symfony\Component\Messenger\Exception\RecoverableMessageHandlingException;
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\MessageBus;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;
use Symfony\Component\Messenger\Retry\MultiplierRetryStrategy;
use Symfony\Component\Messenger\Transport\InMemory\InMemoryTransport;
use Symfony\Component\Messenger\Transport\InMemoryTransport as OlderTransport;
use Symfony\Component\Messenger\Worker;

/** Components of Symfony with locks that last while their process lives, as the page says. */
final class SymfonyComponentsTest extends TestCase
{
    public function testAMessageWhoseLockIsHeldIsTriedAgainUntilItIsFree(): void
    {
        [$factory, $name, $handled, $tries] = [$this->factory(), self::key(), 0, 0];
        $held = $this->factory()->createLock($name);
        self::assertTrue($held->acquire());
        $handler = function () use ($factory, $name, &$handled): void {
            $lock = $factory->createLock($name);
            if (!$lock->acquire()) {
                throw new RecoverableMessageHandlingException("'$name' is held");
            }
            $handled++;
        };
        $transport = class_exists(InMemoryTransport::class) ? new InMemoryTransport() : new OlderTransport();
        $transport->send(new Envelope(new \stdClass()));
        $of = static fn (object $one) => new ServiceLocator(['queue' => static fn () => $one]);
        $events = new EventDispatcher();
        // Without a retry of its own: the exception asks for one.
        $retry = new SendFailedMessageForRetryListener($of($transport), $of(new MultiplierRetryStrategy(0)));
        $events->addSubscriber($retry);
        $events->addListener(WorkerMessageFailedEvent::class, function () use ($held, &$tries): void {
            ++$tries === 5 && $held->release();
        });
        $events->addListener(WorkerRunningEvent::class, function (WorkerRunningEvent $event) use (&$handled): void {
            $handled > 0 && $event->getWorker()->stop();
        });
        $handlers = new HandlersLocator([\stdClass::class => [$handler]]);
        $bus = new MessageBus([new HandleMessageMiddleware($handlers)]);
        (new Worker(['queue' => $transport], $bus, $events))->run(['sleep' => 1000]);
        self::assertSame([5, 1], [$tries, $handled]);
        self::assertFalse($this->client()->inspect($name)->isHeld);
    }

    public function testOfTwoCommandsOfOneNameOneRuns(): void
    {
        $name = self::key();
        $command = fn (?callable $does = null) => new CommandTester((new Command())->setCode(
            function () use ($name, $does): int {
                $lock = $this->factory()->createLock($name);
                if (!$lock->acquire()) {
                    return Command::FAILURE;
                }
                return $does === null ? Command::SUCCESS : $does();
            }
        ));
        $first = $command(static fn (): int => $command()->execute([]) === Command::FAILURE ? 42 : 43);
        self::assertSame(42, $first->execute([]));
        self::assertSame(Command::SUCCESS, $command()->execute([]));
    }

    private function factory(): LockFactory
    {
        return new LockFactory(new LockkeeperHoldStore($this->client()));
    }
}
