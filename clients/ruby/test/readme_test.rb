# frozen_string_literal: true

require_relative "helper"

# The programs of the page.
class ReadmeTest < TestCase
  PAGE = (HERE.parent + "README.md").read(encoding: "UTF-8")

  def programs
    PAGE.scan(/^```ruby\n(.*?)^```/m).flatten
  end

  def program(mark)
    programs.find { |text| text.include?(mark) }
  end

  def setup
    super
    ENV["LOCKKEEPER_URL"] = @fake.url
  end

  def test_the_first_program
    text = program("Client.new(\"http://localhost:8080\")").sub("http://localhost:8080", @fake.url).sub("wait: 60", "wait: 0")
    assert_output("at work with fencing token 101\n") { eval(text, TOPLEVEL_BINDING.dup) }
    @fake.held["report"] = ["of another", 1]
    assert_output("by the test; retry later, or wait longer\n") { eval(text, TOPLEVEL_BINDING.dup) }
  end

  def test_a_loop_that_looks_stops_at_the_loss
    ran = []
    step = lambda do |lease, row|
      ran << row
      next unless row == 5

      lose
      until_true { lease.lost? }
    end
    place = binding
    place.local_variable_set(:step, step)
    text = program("lease.check!").sub("lease.check!", "\\0; step.call(lease, row)").sub('"1m"', "0.9")
    assert_raises(LockKeeper::LeaseLost) { place.eval(text) }
    assert_equal [*0..5], ran
  end

  def test_every_error_has_a_row
    LockKeeper.constants.map { |name| LockKeeper.const_get(name) }.each do |one|
      next unless one.is_a?(Class) && one < LockKeeper::Error

      assert_match(/^\| `#{one.name.split("::").last}` \|/, PAGE)
    end
  end

  def test_a_job_of_active_job_runs_once_at_a_time
    begin
      require "active_job"
    rescue LoadError
      skip "no active_job here"
    end
    ActiveJob::Base.logger = Logger.new(File::NULL)
    ActiveJob::Base.queue_adapter = :test
    place = Module.new
    place.const_set(:Report, Class.new { def self.write(shop) = (@ran ||= []) << shop })
    place.module_eval(program("ActiveJob::Base"))
    job = place::ReportJob
    job.perform_now("a")
    assert_equal(["shop/a/report"], @fake.seen.map(&:key).uniq)
    @fake.held["shop/a/report"] = ["of another", 1]
    job.perform_now("a")
    job.perform_now("b")
    assert_equal %w[a b], place::Report.instance_variable_get(:@ran)
    assert_equal [["a"]], job.queue_adapter.enqueued_jobs.map { |one| one["arguments"] }
  end

  def test_a_job_of_sidekiq_runs_once_at_a_time
    begin
      require "sidekiq"
      require "sidekiq/testing"
    rescue LoadError
      skip "no sidekiq here"
    end
    place = Module.new
    place.module_eval(program("OneAtATime"))
    job = Class.new do
      include Sidekiq::Worker
      def lock_key(shop) = "shop/#{shop}/report"
    end
    place.const_set(:ReportJob, job)
    chain = Sidekiq::Middleware::Chain.new.tap { |one| one.add(place::OneAtATime) }
    ran = []
    run = ->(one, shop) { chain.invoke(one, { "args" => [shop] }, "default") { ran << shop and nil } }
    Sidekiq::Testing.fake! do
      run.call(job.new, "a")
      @fake.held["shop/a/report"] = ["of another", 1]
      run.call(job.new, "a")
      run.call(Object.new, "without a key")
      assert_equal [["a"]], job.jobs.map { |one| one["args"] }
    end
    assert_equal ["a", "without a key"], ran
    assert_equal(["shop/a/report"], @fake.seen.map(&:key).uniq)
  end
end
