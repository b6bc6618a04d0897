# frozen_string_literal: true

require_relative "lib/lockkeeper/version"

Gem::Specification.new do |spec|
  spec.name = "lockkeeper"
  spec.version = LockKeeper::VERSION
  spec.authors = ["The authors of lockkeeper"]
  spec.summary = "A client of the lock service lockkeeper"
  spec.description = "Leases with fencing tokens, which are renewed while the work runs."
  spec.licenses = %w[MIT Apache-2.0]
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir.chdir(__dir__) { Dir["lib/**/*.rb", "README.md", "LICENSE-*"] }
  spec.homepage = "https://lockkeeper.example/lockkeeper"
  spec.metadata = { "rubygems_mfa_required" => "true" }
end
