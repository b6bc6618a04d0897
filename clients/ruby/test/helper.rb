# frozen_string_literal: true

require "minitest/autorun"
require "minitest/mock"
require "pathname"
require "stringio"
require "tempfile"
require "timeout"

$LOAD_PATH.unshift File.expand_path("../lib", __dir__)
require "lockkeeper"
require_relative "fake"

Thread.report_on_exception = true

class TestCase < Minitest::Test
  HERE = Pathname.new(__dir__)

  def setup
    @environment = ENV.to_h
    ENV.delete_if { |name, _| name.start_with?("LOCKKEEPER") }
    @fake = Fake.new
    @client = LockKeeper::Client.new(@fake.url)
    @log = StringIO.new
    LockKeeper.logger = Logger.new(@log)
  end

  def teardown
    LockKeeper::Claims.end_all
    LockKeeper.logger = nil
    @fake.close
    ENV.replace(@environment)
  end

  def problem(...)
    Fake.problem(...)
  end

  # Polls for what comes without a signal.
  def until_true(limit = 15)
    over = LockKeeper.now + limit
    until yield
      flunk "not in time" if LockKeeper.now > over
      sleep 0.01
    end
  end

  def free?(key = "k")
    !@fake.held.key?(key)
  end

  # Nothing is held and no claim is being withdrawn, or will be in a moment.
  def assert_nothing_is_left
    until_true { free? && LockKeeper::Claims.open.empty? }
  end

  def lose
    @fake.held.clear
  end

  # Runs the block with a constant of a module replaced.
  def with(owner, name, value)
    before = owner.const_get(name)
    owner.send(:remove_const, name)
    owner.const_set(name, value)
    yield
  ensure
    owner.send(:remove_const, name)
    owner.const_set(name, before)
  end
end
