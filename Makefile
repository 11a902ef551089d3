# make test       from nothing but a Rust toolchain on Debian: installs the tools, runs the tests, against this machine's
#                 kernel as root
# make test-vm    those that need ip_vs, on a kernel of their own
# make test-all   the same, and the tests that repeat what those prove over every recording, at every point of a change
#                 and in every direction; an hour
# make test-fast  the part that needs neither root nor packages
# make lint       formatting and clippy
# make static     one static program, target/static/kpx, which runs on any node; for this machine's architecture, or for
#                 STATIC_TARGET=TRIPLE; checked in an empty root (root; a few minutes)
# make dist       what a release has, in target/dist: the static program, .deb, .rpm and .tar.gz for amd64 and arm64, the image
#                 for both, an SBOM, checksums, and manifests for krew and Homebrew; with the same bytes each time
# make test-dist  installs target/dist in clean roots of Debian and of an RPM system, and starts its image (root)
# make image      the image of the static program for this machine's architecture, target/kpx-image.tar
# make test-cluster KUBE_BIN=DIR
#                 kpx in a real cluster of three nodes on this machine, with the Kubernetes programs of DIR, under traffic;
#                 SCENARIOS="NAME…" runs those alone (root; half an hour)
# make check-clients
#                 compiles kpx for macOS and Windows, without linking it: there, it works on bundles and over the API
# make fuzz       every parser and decoder on changed recordings, FUZZ_SECONDS=30 for each; FUZZ_TARGETS="NAME…" runs those alone
#                 (nightly Rust, cargo-fuzz and a C++ compiler; as root, the decoders begin with answers of this kernel)
# make coverage   how many lines of the pure part the unit tests and the suite run, by module; fails below 92 % (cargo-llvm-cov)
# make bench      how long the doctor, a diff and a trace take on a large node, and more (root; wants iptables, nftables,
#                 ipset, conntrack and nfacct)

SHELL = /bin/bash
.SHELLFLAGS = -eu -o pipefail -c

# What kpx looks at is made and checked with the first line; this file and what it builds need the second.
PACKAGES = iptables nftables ipset ipvsadm conntrack nfacct iproute2 procps kmod util-linux \
	shellcheck man-db gcc libc6-dev make dpkg apt
# The virtual machine needs the first line, the user-mode kernel the second.
VM_PACKAGES = qemu-system-x86 busybox-static cpio xz-utils zstd \
	flex bison bc perl libelf-dev
PROMTOOL = target/promtool/usr/bin/promtool

# Packages and namespaces need root; cargo builds as whoever calls make.
SUDO = $(if $(filter 0,$(shell id -u)),,sudo)

# What a cluster has beside these.
CLUSTER_PACKAGES = etcd-server containerd runc containernetworking-plugins openssl jq

# The kernels of the virtual machines, of which the first run fetches one and builds one.
KERNELS =
VM_KERNELS = target/vm/kernel target/vm/um

KERNEL_TESTS = cargo test --locked --test kernel
RUNNER = --config "target.'cfg(unix)'.runner='$(1)'"
# Passed, and not by running nothing.
PASSED = grep -q '^test result: ok\. [1-9]'

# A build that is made once gains nothing from what makes the next one faster, and warnings that only a newer clippy has
# stop nobody but us.
ifdef CI
export CARGO_INCREMENTAL = 0
DENY = -- -D warnings
endif

.NOTPARALLEL:

# Runs these parts one after the other, and prints how long each took.
timed = @times=; for part in $(1); do \
		began=$$SECONDS; \
		$(MAKE) --no-print-directory $$part $(2); \
		times+="$$part: $$((SECONDS - began)) s"$$'\n'; \
		printf '%s' "$$times"; \
	done

.PHONY: test
test: packages
	$(call timed,test-fast test-files test-kernel)

.PHONY: test-all
test-all: packages
	rm -rf target/times
	$(call timed,lint test-fast test-files test-loops test-report dist test-dist test-kernel test-vm,ALL=1 ARCHS=$(ARCH))
	@echo "the slowest tests, in seconds:"
	@sed -nE 's/^test ([^ ]+) .*<([0-9.]+)s>$$/\2 \1/p; s/^ *([0-9]+)([0-9]{3}) ms  ([^ ]+).*/\1.\2 \3/p' target/times/* | \
		sort -rn | head -20

.PHONY: lint
lint: toolchain
	cargo fmt --check
	cargo clippy --locked --all-targets $(DENY)

# With ALL, how long each test took is kept. A stable test program measures it only if it is told that it may: by its
# environment, since dependencies are built again where that of cargo changes.
TIMES = $(call RUNNER,env RUSTC_BOOTSTRAP=1)
TIMED = -Zunstable-options --report-time
KEEP = | { mkdir -p target/times; tee target/times/$@; }

# Many tests wait for a timer: more of them at a time keep the processors busy.
.PHONY: test-fast
test-fast:
	RUST_TEST_THREADS=$$(($$(nproc) * 3)) cargo test --locked $(if $(ALL),$(TIMES) -- $(TIMED) $(KEEP))

# What others show of chosen recordings, of every recording; migrations that are cut short at every point, and gone on with
# and taken back from each.
.PHONY: test-loops
test-loops:
	cargo test --locked --test suite $(TIMES) -- $(TIMED) --ignored --skip browser:: $(KEEP)
	@$(PASSED) target/times/$@

# The page of `kpx report` in a browser; the screenshots are in target/report.
.PHONY: test-report
test-report: PACKAGES = chromium fonts-dejavu-core
test-report: packages
	cargo test --locked --test suite $(TIMES) -- $(TIMED) --ignored --test-threads=1 browser:: $(KEEP)
	@$(PASSED) target/times/$@

# What is no Rust.
.PHONY: test-files
test-files: $(PROMTOOL)
	$(PROMTOOL) check rules deploy/serve/prometheus/rules.yaml
	$(PROMTOOL) test rules deploy/serve/prometheus/rules-test.yaml
	shellcheck -x .ci/run deploy/dist/* docs/demo/record benches/*.sh src/command/snapshot/snapshot.sh fuzz/seeds tests/dist \
		tests/kernel-tests tests/lab/node tests/static tests/vm/*
	@echo "man --warnings man/*"
	@! for page in man/*; do \
		LC_ALL=C.UTF-8 man --warnings -E UTF-8 -l -Tutf8 -Z $$page 2>&1 >/dev/null | sed "s|^|$$page: |"; \
	done | grep .

# Debian has it in a package that starts a Prometheus: only the program is taken out.
$(PROMTOOL):
	@mkdir -p target/promtool
	$(SUDO) apt-get -qq update
	cd target/promtool && apt-get -qq download prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb

# On this machine's kernel, in network namespaces of the tests' own.
.PHONY: test-kernel
test-kernel: root
	$(SUDO) tests/kernel-tests $$($(KERNEL_TESTS) --no-run --message-format=json 2>/dev/null | \
		sed -n 's/.*"executable":"\([^"]*\/kernel-[^"]*\)".*/\1/p') --skip ::vm_ $(if $(ALL),$(KEEP),--skip ::long_)

# Real kubelets, a real API server and a real kube-proxy. It fails where it cannot run.
.PHONY: test-cluster
test-cluster: PACKAGES += $(CLUSTER_PACKAGES)
test-cluster: packages
	$(MAKE) static
	cargo test --locked --test lab --no-run
	$(SUDO) env KUBE_BIN="$(KUBE_BIN)" PATH="$$PATH" \
		$$(cargo test --locked --test lab --no-run --message-format=json 2>/dev/null | \
			sed -n 's/.*"executable":"\([^"]*\/lab-[^"]*\)".*/\1/p') test $(SCENARIOS)

# The C library's archive is in libc6-dev. For musl, Rust has it and the linker, and a C compiler is needed for the
# processor. Addresses are fixed, so that there is nothing for a dynamic linker to do; paths of this machine are replaced, and
# C code is compiled with a fixed date, so that the program has the same bytes wherever and whenever it is built. Functions with
# the same code are kept once.
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
STATIC_TARGET = $(HOST)
STATIC = target/static/kpx
MUSL = $(findstring musl,$(STATIC_TARGET))
FOREIGN = $(filter-out $(firstword $(subst -, ,$(HOST))),$(firstword $(subst -, ,$(STATIC_TARGET))))
CC_FOR_MUSL = $(if $(FOREIGN),$(FOREIGN)-linux-gnu-gcc,musl-gcc)
HEADERS = $(if $(MUSL),$(if $(FOREIGN),target/musl/$(FOREIGN)))
HEADERS_ONLY = $(if $(HEADERS),TARGET_CFLAGS="-nostdinc -isystem $(abspath $(HEADERS))/usr/include/$(FOREIGN)-linux-musl \
	-isystem $$($(CC_FOR_MUSL) -print-file-name=include)")
CRATES = $(or $(CARGO_HOME),$(HOME)/.cargo)/registry/src
static: export KPX_COMMIT ?= $(shell git rev-parse HEAD)
.PHONY: static
static: PACKAGES = gcc libc6-dev binutils $(if $(MUSL),$(if $(FOREIGN),gcc-$(FOREIGN)-linux-gnu qemu-user-static,musl-tools))
static: packages $(HEADERS)
	@[ -d "$$(rustc --print target-libdir --target $(STATIC_TARGET))" ] || rustup target add $(STATIC_TARGET)
	$(if $(MUSL),TARGET_CC=$(CC_FOR_MUSL)) $(HEADERS_ONLY) SOURCE_DATE_EPOCH=0 RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static \
		--remap-path-prefix=$(CURDIR)=/kpx --remap-path-prefix=$(CRATES)=/crates $(if $(MUSL),-C linker=rust-lld -C link-arg=--icf=all -C link-arg=-O2)" \
		cargo build --locked --profile static --target $(STATIC_TARGET)
	install -D target/$(STATIC_TARGET)/static/kpx $(STATIC)
	$(SUDO) tests/static $(STATIC)

# musl's headers for another processor are in Debian's archive for it, whose lists this machine need not have.
ifneq ($(HEADERS),)
$(HEADERS): APT = $(SUDO) apt-get -qq \
	$(foreach name,Architecture Architectures,-o APT::$(name)=$(if $(filter aarch64,$(FOREIGN)),arm64,amd64)) \
	$(foreach name,State::lists Cache,-o Dir::$(name)=$(abspath $@.apt))
$(HEADERS):
	mkdir -p $@.apt/{,archives/}partial
	$(APT) update
	cd $@.apt && $(APT) download musl-dev
	dpkg-deb -x $@.apt/musl-dev_*.deb $@
	$(SUDO) rm -rf $@.apt
endif

# What a release has, of the programs in PROGRAMS: a release builds each on a machine of its own.
DIST = target/dist
DIST_URL = file://$(abspath $(DIST))
PROGRAMS = target/programs
ARCHS = amd64 arm64
ARCH = $(if $(filter aarch64-%,$(HOST)),arm64,amd64)
TARGET_amd64 = x86_64-unknown-linux-musl
TARGET_arm64 = aarch64-unknown-linux-musl
IMAGE = kpx:$(VERSION)
IMAGE_OF = deploy/dist/image $(IMAGE) $(1) $(foreach arch,$(2),$(arch)=$(PROGRAMS)/kpx-linux-$(arch))
dist-files image: export VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml)
dist-files image: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
dist-files image: PACKAGES = dpkg rpm jq

.PHONY: dist
dist: $(addprefix program-,$(ARCHS))
	$(MAKE) dist-files

.PHONY: program-amd64 program-arm64
program-amd64 program-arm64: program-%:
	$(MAKE) static STATIC_TARGET=$(TARGET_$*) STATIC=$(PROGRAMS)/kpx-linux-$*

.PHONY: dist-files
dist-files: packages
	rm -rf $(DIST)
	for arch in $(ARCHS); do deploy/dist/packages $(PROGRAMS)/kpx-linux-$$arch $$arch $(DIST); done
	$(call IMAGE_OF,$(DIST)/kpx-image.tar,$(ARCHS))
	deploy/dist/sbom $(TARGET_$(firstword $(ARCHS))) >$(DIST)/kpx.cdx.json
	deploy/dist/manifests $(DIST) $(DIST_URL)

.PHONY: image
image: packages
	$(MAKE) program-$(ARCH)
	$(call IMAGE_OF,target/kpx-image.tar,$(ARCH))

# ring compiles C, also for a check. Debian has a cross compiler for Windows, but none for macOS, where `true` stands in for it:
# a check reads no object file. SDKROOT keeps the build script from asking Xcode for the SDK.
CLIENTS = x86_64-pc-windows-gnu x86_64-apple-darwin aarch64-apple-darwin
APPLE = $(foreach target,$(subst -,_,$(filter %-apple-darwin,$(CLIENTS))),CC_$(target)=true AR_$(target)=true) SDKROOT=/
.PHONY: check-clients
check-clients: PACKAGES = gcc libc6-dev gcc-mingw-w64-x86-64
check-clients: packages
	rustup target add $(CLIENTS)
	$(APPLE) RUSTFLAGS="-D warnings" cargo check --locked --bin kpx $(addprefix --target ,$(CLIENTS))

# In clean roots of Debian and of an RPM system, and in a containerd of its own.
.PHONY: test-dist
test-dist: PACKAGES = mmdebstrap debian-archive-keyring rpm man-db jq containerd runc
test-dist: packages
	$(SUDO) tests/dist $(DIST)

# One program has all targets. It is built with the versions of Cargo.lock, and without a sanitizer: the targets are safe Rust,
# whose checks of bounds and overflow are on. An input that fails is kept in target/fuzz/found, those that reach new code in
# target/fuzz/corpus.
FUZZ = target/fuzz
FUZZER = $(FUZZ)/$(HOST)/release/target
FUZZ_SECONDS = 30
FUZZ_TARGETS = $$($(FUZZER))
.PHONY: fuzz
fuzz:
	@cargo +nightly --version >/dev/null 2>&1 || { echo "missing: rustup toolchain install nightly" >&2; exit 1; }
	@cargo fuzz --version >/dev/null 2>&1 || { echo "missing: cargo install cargo-fuzz" >&2; exit 1; }
	cp Cargo.lock fuzz/Cargo.lock
	cargo +nightly fuzz build --sanitizer none --target-dir $(FUZZ)
	rm -rf $(FUZZ)/seeds
	fuzz/seeds $(FUZZER) $(FUZZ)/seeds
	@mkdir -p $(FUZZ)/found; \
	failed=; \
	for target in $(FUZZ_TARGETS); do \
		echo "== $$target"; \
		mkdir -p $(FUZZ)/corpus/$$target $(FUZZ)/seeds/$$target; \
		KPX_TARGET=$$target $(FUZZER) $(FUZZ)/corpus/$$target $(FUZZ)/seeds/$$target -max_total_time=$(FUZZ_SECONDS) \
			-timeout=20 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 -artifact_prefix=$(FUZZ)/found/$$target- || \
			failed+=" $$target"; \
	done; \
	[ -z "$$failed" ] || { echo "failed:$$failed; see $(FUZZ)/found" >&2; exit 1; }

# The share of lines that `test-fast` runs. Without the kernel tests: they see more of the traces. A kpx that has given up its
# rights can write no profile when it ends, so it maps the file when it starts: %c, which needs relocated counters.
COVERAGE = target/coverage.lcov
.PHONY: coverage
coverage:
	@cargo llvm-cov --version >/dev/null 2>&1 || { echo "missing: cargo install cargo-llvm-cov" >&2; exit 1; }
	@[ -x "$$(rustc --print target-libdir)/../bin/llvm-profdata" ] || { echo "missing: rustup component add llvm-tools" >&2; exit 1; }
	RUSTFLAGS="-C llvm-args=-runtime-counter-relocation" LLVM_PROFILE_FILE_NAME=kpx-%m%c.profraw \
		cargo llvm-cov --locked --lib --test suite --lcov --output-path $(COVERAGE)
	tests/coverage -v MINIMUM=92 <$(COVERAGE)

# How long a trace and the doctor take on a large node, beside the tools that read all rules.
.PHONY: bench
bench: root
	cargo build --locked --profile static
	benches/start.sh target/static/kpx
	$(SUDO) benches/doctor.sh
	$(SUDO) benches/change.sh
	$(SUDO) benches/serve.sh
	$(SUDO) benches/top.sh
	$(SUDO) benches/sets.sh
	$(SUDO) benches/nft.sh
	cargo bench --locked --bench rules $(if $(SUDO),$(call RUNNER,sudo))
	cargo bench --locked --bench bridge $(if $(SUDO),$(call RUNNER,sudo))
	cargo bench --locked --bench follow $(if $(SUDO),$(call RUNNER,sudo))

# How time and memory grow with the cluster: the table and the pictures of docs/scale.md are in target/scale.
.PHONY: bench-scale
bench-scale: root
	cargo build --locked --profile static
	$(SUDO) env OUT=target/scale benches/scale.sh

# Time and memory of the commands on bundles of 5,000 nodes.
.PHONY: bench-nodes
bench-nodes:
	cargo bench --locked --bench nodes

# How long it takes to write what the ipvs mode needs, beside the tools that load the same text.
.PHONY: bench-ipvs
bench-ipvs:
	cargo bench --locked --bench ipvs $(call RUNNER,tests/vm/run)

# What needs a kernel with ip_vs, by the same program: a user-mode one, and Debian's, emulated, for what is about modules.
# Tests of these names start from a kernel that has loaded nothing yet, or take minutes: each name boots a machine of its
# own, all others share one.
VM_BLANK = reconcile_watch::vm_ traffic::tests::vm_ traffic::bridged::vm_ migration::vm_from_i migration::vm_from_n \
	reconcile_ipvs:: faults::ipvs::vm_a_module kernel::ipvs::vm_ stock:modules::vm_ \
	stock:others::vm_ stock:preflight::vm_looking preflight::vm_the preflight::vm_what preflight::vm_when
# Without the user-mode kernel, which takes minutes to build: a few of each kind, on Debian's kernel.
VM_FEW = --only stock:modules::vm_ stock:kernel::ipvs::vm_every stock:preflight::vm_looking stock:probe::vm_ \
	stock:reconcile_ipvs::vm_a_blank
.PHONY: test-vm
test-vm: PACKAGES += $(VM_PACKAGES)
test-vm: KERNELS = $(VM_KERNELS)
test-vm: packages
	tests/vm/all $(if $(ALL),$(VM_BLANK) $(KEEP),$(VM_FEW))

# Real packets judge a trace through IPVS: all of them. Some are part of `test-vm`; emulated, this takes many minutes.
.PHONY: test-vm-packets
test-vm-packets: PACKAGES += $(VM_PACKAGES)
test-vm-packets: KERNELS = $(VM_KERNELS)
test-vm-packets: packages
	$(KERNEL_TESTS) $(call RUNNER,tests/vm/run) -- --ignored --test-threads=1 ::vm_the_kernel_agrees
	@$(PASSED) target/vm/last/output

# A kernel is fetched and built from packages too, for which the lists must be fresh.
.PHONY: packages
packages: root
	@missing=$$(for package in $(PACKAGES); do \
		[ "$$(dpkg-query -W -f '$${db:Status-Status}' $$package 2>/dev/null)" = installed ] || echo $$package; \
	done); \
	unbuilt=$$(for kernel in $(KERNELS); do [ -d $$kernel ] || echo $$kernel; done); \
	if [ -n "$$missing$$unbuilt" ]; then \
		$(SUDO) apt-get -qq update; \
	fi; \
	if [ -n "$$missing" ]; then \
		echo "installing" $$missing; \
		$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing </dev/null; \
	fi

# rustup's minimal profile has neither.
.PHONY: toolchain
toolchain:
	@cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@cargo clippy --version >/dev/null 2>&1 || rustup component add clippy

.PHONY: root
root:
	@[ -z "$(SUDO)" ] || command -v sudo >/dev/null || { \
		echo "This part needs root, for packages and network namespaces: run it as root, or install sudo." >&2; \
		echo "'make test-fast' needs neither." >&2; \
		exit 1; \
	}
