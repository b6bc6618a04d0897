# frozen_string_literal: true

# The driver of the Ruby client for situations.py; clients/SITUATIONS.md says what it does.

require_relative "../../clients/ruby/lib/lockkeeper"
require "fiddle"
require "timeout"

class Driver
  Cancelled = Class.new(StandardError)
  Failure = Class.new(StandardError)

  def initialize(mode, key, options)
    @mode = mode
    @key = key
    @client = LockKeeper::Client.new
    @named = { ttl: options.fetch("ttl", "30s"), wait: options.fetch("wait", "10s") }
    share = options.slice("slots", "units").to_h { |name, value| [name.to_sym, Integer(value)] }
    @keys = options.key?("also") ? [key, { key: options["also"], **share }] : key
    @named.merge!(share) unless options.key?("also")
    @seconds = LockKeeper.seconds(options.fetch("seconds", "2"))
    @after = LockKeeper.seconds(options.fetch("after", "300ms"))
  end

  def run
    return say(@client.get(@key).held? ? "held" : "free") if @mode == "get"

    @mode == "cancel" ? Timeout.timeout(@after, Cancelled) { work } : work
    say(@mode == "throw" ? "wrong" : "done")
  rescue Failure then say("done")
  rescue LockKeeper::LeaseLost => error
    raise error unless @mode == "block" || error.cause.nil? || error.cause.is_a?(LockKeeper::LeaseLost)

    say("lost")
  rescue LockKeeper::LockBusy then say("busy")
  rescue LockKeeper::ServiceUnavailable then say("unavailable")
  rescue LockKeeper::RequestRefused then say("refused")
  rescue LockKeeper::WaitCancelled, Cancelled then say("cancelled")
  end

  private

  def say(*words)
    $stdout.syswrite("#{words.join(" ")}\n")
  end

  def lock(&block)
    @client.lock(@keys, on_lost: -> { say("told") }, **@named) do |lease|
      say("acquired", lease.fencing_tokens[@key] || lease.fencing_tokens.values.first)
      block&.call(lease)
    end
  end

  def work
    leave_later if @mode == "exit"
    lock if @mode == "twice"
    lock do |lease|
      case @mode
      when "odd" then look
      when "throw" then raise Failure
      when "block" then compute
      else step(lease)
      end
    end
  end

  # Keeps the interpreter's lock like a computation, without a processor.
  def compute
    usleep = Fiddle.dlopen(nil)["usleep"]
    usleep = Fiddle::Function.new(usleep, [Fiddle::TYPE_INT], Fiddle::TYPE_INT, need_gvl: true)
    usleep.call(5_000) while ticks.next < @seconds
  end

  def leave_later
    trap("ALRM") { exit 0 }
    Thread.new do
      sleep @after
      Process.kill("ALRM", Process.pid)
    end
  end

  def look
    state = @client.get(@key)
    raise "not held" unless state.held? && state.key.b == @key.b
    raise "not listed" unless @client.list(@key).map { |one| one.key.b } == [@key.b]
  end

  def ticks
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    @ticks ||= Enumerator.produce { Process.clock_gettime(Process::CLOCK_MONOTONIC) - began }
  end

  def step(lease)
    child = fork { sleep 0.5 } if @mode == "fork"
    until ticks.next >= @seconds
      lease.check!
      sleep 0.02
    end
    Process.wait(child) if child
  end
end

mode, key, *options = ARGV
Driver.new(mode, key, options.to_h { |option| option.split("=", 2) }).run
return unless mode == "work"

# What a refused claim leaves is withdrawn behind its answer. Then it ends at once: Ruby before 3.3 burns
# all cores at its end while a name server is silent, and holds every other row up.
over = LockKeeper.now + 3
sleep 0.01 until LockKeeper::Claims.open.empty? || LockKeeper.now > over
exit!(true)
