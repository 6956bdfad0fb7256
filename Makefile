# Everything that a person or a machine runs here. `make help` lists it.

CARGO ?= cargo
PREFIX ?= /usr/local
# How long `make fuzz` spends on each decoder, in seconds.
FUZZ_SECONDS ?= 30
# How many inputs of each `make check` tries: always the same ones.
FUZZ_CHECK_RUNS ?= 2000
# How many times `make soak` pulls the plug.
SOAK_KILLS ?= 200
# How many tests of a program run at once: most wait longer than they compute.
TEST_THREADS ?= $(shell echo $$((2 * $$(nproc))))
# What the properties' random cases start from in `make test`; a bare `cargo test` draws its own.
PROPTEST_RNG_SEED ?= 1

export PATH := $(PATH):/usr/sbin:/sbin:$(HOME)/.cargo/bin

.PHONY: help deps build lab package-files install deb demo test test-product test-conformance test-console test-csi test-kernel test-kernel-nbd test-vhost-user test-ipsec test-package check fmt bench bench-quick bench-full bench-schemes bench-peers bench-profile bench-attach bench-sealing bench-runtime bench-store bench-keys bench-iterations bench-pairs bench-wan bench-ecl wan-lab fuzz soak clean

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

deps: ## Install the Debian packages and the Rust that are needed, once
	@scripts/deps.sh

build: deps ## The binary, optimised: target/release/strongroom; its symbols are in strongroom.debug beside it
	$(CARGO) build --release --locked --package strongroom
	@scripts/split-debug.sh target/release/strongroom

lab: deps ## The benchmarks and the link emulator, optimised: target/release/strongroom-lab
	$(CARGO) build --release --locked --package strongroom-lab

# Manual pages and completions are made by the program itself.
package-files: build
	@rm -rf target/package && target/release/strongroom generate target/package

install: package-files ## Install the program, its manual pages, completions and systemd units: PREFIX=/usr/local, DESTDIR= for packages
	@scripts/install.sh "$(DESTDIR)" "$(PREFIX)"

deb: package-files ## A Debian package, checked by lintian: target/debian
	@scripts/deps.sh --package
	$(CARGO) deb --package strongroom --no-build --no-strip --locked
	lintian --fail-on error $$(ls -t target/debian/strongroom_*.deb | head -n 1)

demo: build ## Serve, attach, use and prove a sealed volume, on this machine's own files (as root, under 3 minutes)
	@target/release/strongroom demo

test: deps ## Every test; the properties from one seed, so that a failure says something of the sources (PROPTEST_RNG_SEED=N for others)
	RUST_TEST_THREADS=$(TEST_THREADS) PROPTEST_RNG_SEED=$(PROPTEST_RNG_SEED) $(CARGO) test --workspace --locked --no-fail-fast

# Cargo unifies the features of what it builds together, so our own libraries are compiled a second time. That the product does not enable those
# suites is part of `make test` (tidy.rs); here the product refuses them.
test-product: deps ## The product built alone refuses the papers' cipher suites (minutes; not in `make test`)
	STRONGROOM_PRODUCT_ALONE=1 $(CARGO) test --locked --package strongroom --test it product::

test-conformance: deps ## libiscsi's conformance suite against our target, skips counted (part of `make test`)
	$(CARGO) test --locked --package strongroom-target --test it conformance

test-console: build ## The web console in Chromium: pages, forms, keyboard, narrow and dark, accessibility (a minute; not in `make test`)
	@scripts/deps.sh --browser
	@scripts/test-console.sh target/release/strongroom

test-csi: build ## The CSI driver: csi-sanity and our own test, with real attachments and file systems (as root, with Go, 5 minutes; not in `make test`)
	@scripts/deps.sh --csi
	@scripts/test-csi.sh target/release/strongroom

test-kernel: build ## Linux's own initiator in a virtual machine: CHAP, digests, ext4, XFS, and a target that is killed (minutes; not in `make test`)
	@scripts/deps.sh --kernel
	@scripts/test-kernel.sh target/release/strongroom

test-kernel-nbd: build ## The kernel's NBD client (attach --nbd) in a virtual machine: the serving process killed under ext4, resizing, detaching (minutes; not in `make test`)
	@scripts/deps.sh --kernel
	@scripts/test-nbd.sh target/release/strongroom

test-vhost-user: build ## A virtual machine with a sealed volume as its root disk, over vhost-user, whose back end is killed (minutes; not in `make test`)
	@scripts/deps.sh --kernel
	@scripts/test-vhost-user.sh target/release/strongroom

test-ipsec: lab ## scripts/ipsec.sh inside AH and ESP of a kernel that has them, in a virtual machine (minutes; not in `make test`)
	@scripts/deps.sh --kernel
	@scripts/test-ipsec.sh target/release/strongroom-lab

test-package: deb ## The Debian package in a virtual machine with systemd: install, reboot, upgrade, remove, purge (as root, minutes; not in `make test`)
	@scripts/deps.sh --vm
	@scripts/test-package.sh

check: ## Formatting, lints, documentation, dependencies' licences and sources; every decoder fuzzed for a moment
	@scripts/deps.sh --checks
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet
	$(CARGO) deny --locked --log-level error check --hide-inclusion-graph licenses bans sources
	@FUZZ_RUNS=$(FUZZ_CHECK_RUNS) scripts/fuzz.sh

fmt: ## Format the sources
	$(CARGO) fmt --all

bench: lab ## The experiments, about 20 minutes on an idle machine: docs/bench
	@scripts/deps.sh --bench
	@scripts/bench.sh

bench-quick: lab ## The same with shorter measurements, about 11 minutes
	@scripts/deps.sh --bench
	@scripts/bench.sh --quick

bench-full: lab ## The papers' whole grid, for hours
	@scripts/deps.sh --bench
	@scripts/bench.sh --full

# Each of the next four is one run of one commit. PROGRAMS="--program old=PATH --program new=PATH" has builds of strongroom-lab as contenders, by
# turns in the same run: the last one is judged, and twice as many contenders take twice as long. ATTACH has builds of strongroom likewise.
bench-schemes: lab ## What laziness buys, and what clients see of it: AES instructions, none, the paper's ciphers, limited targets: docs/bench/schemes.md (about 20 minutes, as root)
	@PROGRAMS="$(PROGRAMS)" scripts/bench-schemes.sh

bench-peers: lab ## Our volumes beside other targets, and beside what secures iSCSI today, with 1 and 16 I/Os in flight (as root, about 15 minutes): docs/bench/peers.md
	@scripts/deps.sh --bench
	target/release/strongroom-lab peers $(PROGRAMS) --depths 1,16 --runs 5 --warm-up 0.2 --seconds 0.5 --json docs/bench/peers.jsonl --quiet
	@target/release/strongroom-lab report docs/bench/peers.jsonl --peers docs/bench/peers.md

bench-profile: lab ## The CPU time of an I/O by stage, at both ends, in each scheme and over ECL, and the bounds on missed goals (as root, with perf; over an hour): docs/bench/profile.md
	@scripts/deps.sh --bench
	target/release/strongroom-lab profile $(PROGRAMS) --runs 5 --warm-up 0.3 --seconds 1 --volume-size 64MiB --fills 16 --json docs/bench/profile.jsonl --quiet
	@target/release/strongroom-lab report docs/bench/profile.jsonl --profile docs/bench/profile.md

bench-attach: build lab ## What a program gets from an attached volume, in FUSE, by NBD and in ext4, and what 40 idle ones cost (as root, about 18 minutes; ATTACH="--program old=PATH --program new=PATH" compares releases): docs/bench/attach.md
	@scripts/deps.sh --bench
	target/release/strongroom-lab attach $(or $(ATTACH),--program target/release/strongroom) --idle 40 --json docs/bench/attach.jsonl --quiet
	@target/release/strongroom-lab report docs/bench/attach.jsonl --attach docs/bench/attach.md

bench-pairs: ## Two builds of strongroom-lab compared, ten interleaved pairs of runs: OLD=PROGRAM NEW=PROGRAM (as root, about 10 minutes)
	@scripts/bench-pairs.sh $(OLD) $(NEW) $(PAIRS)

bench-sealing: deps ## What a block costs, and the cryptographic libraries compared (the tables in docs/sealed-block.md)
	$(CARGO) bench --locked --package strongroom-lab
	cd crates/lab/spikes/crypto && $(CARGO) run --release --locked

bench-runtime: deps ## The runtimes that were compared docs/bench/runtime.md
	cd crates/lab/spikes/runtime && $(CARGO) run --release --locked -- bench

bench-keys: lab ## Keys a second, and time to a first read with and without a key server (DIR=... says on which disk): docs/bench/keys.md
	@target/release/strongroom-lab keys --clients 1,16,64 --work-dir $(or $(DIR),target) --json docs/bench/keys.jsonl --markdown docs/bench/keys.md

bench-wan: lab ## The WAN paper's experiment over an emulated link (as root, about 26 minutes; WAN="--rate 1Gbit" for another): docs/bench/wan.md
	@scripts/bench-wan.sh $(WAN)

bench-ecl: lab ## ECL beside iSCSI over TCP: costs, the quanta paper's figures, losses, shared links (as root, about 25 minutes; ECL=goals for a part): docs/bench/ecl.md
	@scripts/deps.sh --bench
	target/release/strongroom-lab ecl $(ECL) --json docs/bench/ecl.jsonl --quiet; status=$$?; \
	target/release/strongroom-lab report docs/bench/ecl.jsonl --plots docs/bench --ecl docs/bench/ecl.md && exit $$status

bench-store: deps ## The store alone against fio on a raw file docs/bench/store.md; DIR=... says on which file system
	@command -v fio >/dev/null || { echo "fio is missing: apt-get install fio"; exit 1; }
	$(CARGO) run --release --locked --package strongroom-store --example bench-store -- --dir $(or $(DIR),target) --write docs/bench/store.md

wan-lab: lab ## A shell at one end of an emulated wide-area link (as root): WAN="--delay 64ms --rate 1Gbit --loss 1%" make wan-lab
	@target/release/strongroom-lab link $(WAN)

fuzz: deps ## Coverage-guided fuzzing of every decoder, FUZZ_SECONDS (30) each
	@scripts/fuzz.sh $(FUZZ_SECONDS)

bench-iterations: build ## How long the iterations of a target's event loop take while it does what could take long (as root, about 10 minutes)
	@scripts/deps.sh --bench
	@scripts/iterations.sh

soak: deps ## The longest test vectors, SOAK_KILLS (200) power cuts under writes, 1,000 volumes with 10,000 sessions, every combination of schemes, suites and custodies and of front ends and transports, a link that is down for a minute, then one simulated seed after the other, of the store and of the whole system, until stopped or one fails; it prints how many histories were checked
	STRONGROOM_XAES_INPUTS=1000000 $(CARGO) test --release --locked --package strongroom-seal --test it xaes_vectors
	STRONGROOM_KILLS=$(SOAK_KILLS) $(CARGO) test --release --locked --package strongroom-testing --test forgetting_disk
	STRONGROOM_SCALE_VOLUMES=1000 STRONGROOM_SCALE_SESSIONS=10000 $(CARGO) test --release --locked --package strongroom-target --test it many_volumes_and_sessions_stay -- --nocapture
	STRONGROOM_AXES=product $(CARGO) test --release --locked --package strongroom-initiator --test it
	STRONGROOM_AXES=product $(CARGO) test --release --locked --package strongroom --test it axes
	STRONGROOM_WAN_CUT_SECONDS=60 $(CARGO) test --release --locked --package strongroom-initiator --test it wide_area
	$(CARGO) run --release --locked --package strongroom-testing --bin sim-soak

clean: ## Remove what was built
	$(CARGO) clean
