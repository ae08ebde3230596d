# Does what Homebrew does with a formula: $1 is the formula, $2 an empty directory. The words that a
# formula may use are those below, so another one is an error.
require "delegate"
require "digest"
require "fileutils"
require "pathname"
require "tmpdir"

class Place < DelegateClass(Pathname)
  def /(name) = Place.new(Pathname.new(to_s) + name)
  def to_str = to_s
  def write(text) = File.write(to_s, text)
  def install(*files)
    FileUtils.mkdir_p(to_s)
    FileUtils.mv(files, to_s)
  end
end

class Formula
  ARCH = `uname -m`.strip
  class << self
    attr_reader :tests, :source, :sum
    %i[desc homepage version license depends_on].each { |name| define_method(name) { |_| } }
    def on_intel = (yield if ARCH == "x86_64")
    def on_arm = (yield if ARCH == "aarch64")
    def url(text) = @source = text
    def sha256(text) = @sum = text
    def test(&block) = @tests = block
  end

  attr_reader :testpath

  def initialize(root)
    @root = Place.new(Pathname.new(root))
    @testpath = @root/"test"
    FileUtils.mkdir_p(@testpath.to_s)
  end

  def prefix = @root/"prefix"
  def bin = prefix/"bin"
  def sbin = prefix/"sbin"
  def system(*words) = Kernel.system(*words.map(&:to_s)) || abort("failed: #{words.join(" ")}")
  def shell_output(line) = `#{line}`
  def assert_equal(want, got) = want == got || abort("#{got.inspect} is not #{want.inspect}")
end

formula, root = ARGV
require formula
archive = Kedgefs.source.delete_prefix("file://")
Digest::SHA256.file(archive).hexdigest == Kedgefs.sum || abort("the checksum of #{archive} is wrong")
unpacked = "#{root}/unpacked"
FileUtils.mkdir_p(unpacked)
Kernel.system("tar", "-xzf", archive, "--strip-components=1", "-C", unpacked) || abort("tar failed")
kedgefs = Kedgefs.new(root)
Dir.chdir(unpacked) { kedgefs.install }
%w[bin/kedge sbin/mount.kedgefs share/man/man8/kedge.8].each do |file|
  File.exist?("#{root}/prefix/#{file}") || abort("#{file} is not installed")
end
Dir.chdir(kedgefs.testpath.to_s) { kedgefs.instance_eval(&Kedgefs.tests) }
