# Functions of what `berth node render` makes. With BERTH_ROOT=DIR they work on the
# root directory of a machine that does not run: files, links and units, no daemon is
# asked and no package installed.
root=${BERTH_ROOT:-}
root=${root%/}
cache=$root/var/cache/berth-node
pending='' now='' asks='' reload='' archive='' tree='' decode='cat'
own='' header='' cert='' key='' authorities=''

say() { printf '%s\n' "$*" >&2; }
die() {
	say "cannot go on${now:+ with $now}: $*"
	exit 1
}
step() {
	now=$1 asks=${2:-}
	say "$now"
}
changed() {
	pending="$pending $asks"
	case $1 in "$root/etc/systemd/system/"*) reload=yes ;; esac
}

release() { sed -n "s/^$1=//p" "$root/etc/os-release" | tr -d "\"'"; }
machine() { # ID VERSION ARCH: goes on only there
	[ -r "$root/etc/os-release" ] || die "there is no /etc/os-release"
	is=$(release ID) version=$(release VERSION_ID)
	[ "$is" = "$1" ] || die "this machine is $is $version; this is for $1 $2"
	case $version in
	"$2" | "$2".*) ;;
	*) [ -z "$2" ] || die "this machine is $is $version; this is for $1 $2" ;;
	esac
	[ -z "$root" ] || return 0
	[ "$(id -u)" = 0 ] || die "only root may change the machine"
	[ "$(uname -m)" = "$3" ] || die "this machine is $(uname -m); this is for $3"
}

parents() { # PATH: makes the directories above it
	above=${1%/*}
	if [ -n "$above" ] && [ ! -d "$root$above" ]; then
		(umask 022 && mkdir -p "$root$above")
	fi
}
own() { # PATH MODE OWNER GROUP
	if [ "$(id -u)" = 0 ]; then chown -h "$3:$4" "$1"; fi
	chmod "$2" "$1"
}
put() { # PATH MODE OWNER GROUP, content on standard input
	parents "$1"
	at=$root$1 new=$root$1.berth-new
	(umask 077 && $decode >"$new")
	own "$new" "$2" "$3" "$4"
	if [ -d "$at" ]; then
		rm -f "$new"
		die "$1 is a directory"
	elif [ -f "$at" ] && [ ! -L "$at" ] && cmp -s "$new" "$at"; then
		rm -f "$new"
		own "$at" "$2" "$3" "$4"
	else
		mv -f "$new" "$at"
		changed "$at"
	fi
}
coded() { # FUNCTION ARGUMENT…: as the function, with content in base64
	decode='base64 -d'
	"$@"
	decode='cat'
}
put_once() { # as put; a file that is there stays
	if [ -e "$root$1" ] || [ -L "$root$1" ]; then cat >/dev/null; else put "$@"; fi
}
put_alone() { # as put; a file that is somebody else's is not written over
	mine=$cache/files$1
	if [ -e "$root$1" ] && ! cmp -s "$mine" "$root$1"; then die "$1 has keys of somebody else; use berth node apply, which merges them"; fi
	put "$@"
	parents "${mine#"$root"}"
	cp "$root$1" "$mine"
}
gone() {
	if [ -e "$root$1" ] || [ -L "$root$1" ]; then
		rm -f "$root$1"
		changed "$root$1"
	fi
}
directory() { # PATH MODE OWNER GROUP
	parents "$1"
	[ -d "$root$1" ] || mkdir "$root$1"
	own "$root$1" "$2" "$3" "$4"
}
symlink() { # TARGET PATH
	parents "$2"
	[ ! -d "$root$2" ] || [ -L "$root$2" ] || die "$2 is a directory"
	if [ "$(readlink "$root$2" || true)" != "$1" ]; then
		ln -sfn "$1" "$root$2"
		changed "$root$2"
	fi
}

verify() { # FILE ALGORITHM HEX
	[ "$("$2sum" <"$1" | cut -d ' ' -f 1)" = "$3" ]
}
origin() { # URL: scheme and host
	rest=${1#*://}
	printf '%s://%s' "${1%%://*}" "${rest%%/*}"
}
theirs() { # PATH: below the root directory, where it is there
	if [ -e "$root$1" ]; then printf '%s' "$root$1"; else printf '%s' "$1"; fi
}
access() { # SOURCE CREDENTIALS CERT KEY CA…: how the next fetch reaches its servers
	own=$(origin "$1") file=$2 cert=$3 key=$4
	shift 4
	parents "/var/cache/berth-node/."
	if [ -n "$file" ]; then
		header=$cache/header
		text=$(cat "$(theirs "$file")")
		case $text in
		"Basic "* | "Bearer "*) text="Authorization: $text" ;;
		*:*) text="Authorization: Basic $(printf '%s' "$text" | base64 | tr -d '\n')" ;;
		*) die "credentials: $file: want user:password, Basic or Bearer" ;;
		esac
		# In files: what is on a command line is seen by all.
		(umask 077 && printf '%s\n' "$text" >"$header" && printf 'header = %s\n' "$text" >"$header.wget")
	fi
	if [ $# != 0 ]; then
		authorities=$cache/authorities
		for file in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem; do
			if [ -r "$file" ]; then cat "$file"; fi
		done >"$authorities"
		for file in "$@"; do cat "$(theirs "$file")" >>"$authorities"; done
	fi
}
get() { # SOURCE FILE
	source=$1 to=$2 auth=''
	if [ -n "$header" ] && [ "$(origin "$source")" = "$own" ]; then auth=$header; fi
	if command -v curl >/dev/null; then
		set -- curl -fsSL --retry 5 -o "$to"
		if [ -n "$auth" ]; then set -- "$@" -H "@$auth"; fi
		if [ -n "$cert" ]; then set -- "$@" --cert "$(theirs "$cert")" --key "$(theirs "$key")"; fi
		if [ -n "$authorities" ]; then set -- "$@" --cacert "$authorities"; fi
	else
		set -- wget -q -t 5 -O "$to"
		# wget would give the header to whom it is sent on to, too.
		if [ -n "$auth" ]; then set -- "$@" --config "$auth.wget" --max-redirect=0; fi
		if [ -n "$cert" ]; then set -- "$@" --certificate "$(theirs "$cert")" --private-key "$(theirs "$key")"; fi
		if [ -n "$authorities" ]; then set -- "$@" --ca-certificate "$authorities"; fi
	fi
	"$@" "$source"
}
forget() { # what access said
	if [ -n "$header" ]; then rm -f "$header" "$header.wget"; fi
	own='' header='' cert='' key='' authorities=''
}
fetch() { # ALGORITHM HEX SOURCE…: leaves the path in $archive
	algorithm=$1 hex=$2 archive=$cache/$1-$2
	shift 2
	if [ -f "$archive" ] && verify "$archive" "$algorithm" "$hex"; then
		forget
		return 0
	fi
	parents "/var/cache/berth-node/."
	for source in "$@"; do
		rm -f "$archive.part"
		case $source in
		/*) cp "$source" "$archive.part" || continue ;;
		*) get "$source" "$archive.part" || continue ;;
		esac
		if verify "$archive.part" "$algorithm" "$hex"; then
			mv -f "$archive.part" "$archive"
			forget
			return 0
		fi
		source=${source%%\?*}
		say "${source##*/} is not what it should be: its $algorithm is not $hex"
	done
	rm -f "$archive.part"
	forget
	die "no source gives what has $algorithm $hex"
}
unpack() { # NAME FORMAT: $archive to $tree; what is no archive is one file NAME
	tree=$cache/tree
	rm -rf "$tree"
	mkdir "$tree"
	if [ "$2" != raw ] && tar -tf "$archive" >/dev/null 2>&1; then
		tar -xf "$archive" -C "$tree" --no-same-owner
	elif [ "$2" != raw ] && command -v unzip >/dev/null && unzip -tqq "$archive" >/dev/null 2>&1; then
		unzip -qq "$archive" -d "$tree"
	else
		cp "$archive" "$tree/$1"
	fi
}
excepted() { # NAME PATTERNS
	set -f
	for pattern in $2; do
		# shellcheck disable=SC2254 # a pattern it is
		case $1 in $pattern) set +f && return 0 ;; esac
	done
	set +f
	return 1
}
pick() { # WHAT DIR AS MODE MIN MAX EXCEPT LAYOUT…: the first layout with any match
	what=$1 dir=$2 as=$3 mode=$4 min=$5 max=$6 except=$7 count=0
	shift 7
	for layout in "$@"; do
		for pattern in $layout; do
			for file in "$tree"/$pattern; do
				if [ ! -f "$file" ] || excepted "${file##*/}" "$except"; then continue; fi
				count=$((count + 1))
				[ "$max" = 0 ] || [ "$count" -le "$max" ] || die "there is more than one file for $what"
				put "$dir/${as:-${file##*/}}" "$mode" root root <"$file"
			done
		done
		[ "$count" = 0 ] || break
	done
	[ "$count" -ge "$min" ] || die "there is no file for $what"
}
picked() { rm -rf "$tree"; }

group() { # NAME OPTION…
	name=$1
	shift
	if ! grep -q "^$name:" "$root/etc/group"; then groupadd ${root:+-R "$root"} "$@" "$name"; fi
}
user() { # NAME GROUPS OPTION…
	name=$1 groups=$2
	shift 2
	if ! grep -q "^$name:" "$root/etc/passwd"; then useradd ${root:+-R "$root"} "$@" "$name"; fi
	if [ -n "$groups" ]; then usermod ${root:+-R "$root"} -a -G "$groups" "$name"; fi
}

installed() { # MANAGER NAME VERSION
	case $1 in
	apt) has=$(dpkg-query -W -f '${db:Status-Status} ${Version}' "$2" 2>/dev/null) || return 1 ;;
	*) has=$(rpm -q --qf 'installed %|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}' "$2" 2>/dev/null) || return 1 ;;
	esac
	case $has in installed*) [ -z "$3" ] || [ "${has#installed }" = "$3" ] ;; *) return 1 ;; esac
}
hold_units() { # keeps Debian's packages from starting what the policy on standard input names
	policy=$root/usr/sbin/policy-rc.d
	if [ -n "$root" ]; then
		cat >/dev/null
	elif [ -e "$policy" ] && ! grep -q '^# Made by `berth node`' "$policy"; then
		cat >/dev/null
		say "$policy is somebody's: it decides whether packages start what they bring"
	else
		trap free_units EXIT
		sed "s/@PID@/$$/; s/@SINCE@/$(cut -d ' ' -f 22 /proc/$$/stat)/" >"$policy"
		chmod 0755 "$policy"
	fi
}
free_units() {
	policy=$root/usr/sbin/policy-rc.d
	trap - EXIT
	if [ -e "$policy" ] && grep -q '^# Made by `berth node`' "$policy"; then rm -f "$policy"; fi
}
packages() { # MANAGER NAME[=VERSION]…
	manager=$1 missing=''
	shift
	if [ -n "$root" ]; then
		say "packages are not installed into a root directory: $*"
		return 0
	fi
	for package in "$@"; do
		version=''
		case $package in *=*) version=${package#*=} ;; esac
		if installed "$manager" "${package%%=*}" "$version"; then continue; fi
		if [ "$manager" = dnf ] && [ -n "$version" ]; then package=${package%%=*}-$version; fi
		missing="$missing $package"
	done
	[ -n "$missing" ] || return 0
	# shellcheck disable=SC2086 # words they are
	case $manager in
	apt)
		apt-get update -q || say "the lists of packages are as they were"
		DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends --allow-downgrades \
			-o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=600 $missing
		;;
	dnf) dnf install -y -q --setopt=install_weak_deps=False $missing ;;
	zypper) zypper -n install --no-recommends --oldpackage $missing ;;
	esac
	changed ''
}

module() { # NAME OPTIONAL
	[ -z "$root" ] || return 0
	# Some that are built in have no parameters, and so no directory in /sys/module.
	if [ -d "/sys/module/$(printf %s "$1" | tr - _)" ] || grep -qw "$1" /proc/filesystems; then return 0; fi
	if ! modprobe "$1"; then
		[ -n "$2" ] || die "the kernel has no module $1"
	fi
}
setting() { # FILE OPTIONAL VALUE
	[ -z "$root" ] || return 0
	if [ ! -e "$1" ]; then
		[ -n "$2" ] || die "the kernel has no $1"
	elif [ "$(tr -s '\t' ' ' <"$1")" != "$3" ]; then
		printf '%s\n' "$3" >"$1"
	fi
}
swap_off() {
	if [ -f "$root/etc/fstab" ]; then
		awk '$1 !~ /^#/ && NF >= 3 && $3 == "swap" { print "# off by berth node: " $0; next } { print }' \
			"$root/etc/fstab" | put /etc/fstab 0644 root root
	fi
	if [ -e "$root/usr/lib/systemd/system-generators/zram-generator" ]; then
		echo '# By berth node: no swap in compressed memory.' | put /etc/systemd/zram-generator.conf 0644 root root
	fi
	[ -n "$root" ] || swapoff -a
}

unit() { # NAME ENABLED RUNNING OPTIONAL; yes, no or nothing; RUNNING reload: reloads where others restart
	if [ -z "$root" ] && [ -n "$reload" ]; then
		systemctl daemon-reload
		reload=''
	fi
	if [ -n "$4" ] && ! systemctl ${root:+--root "$root"} cat "$1" >/dev/null 2>&1; then return 0; fi
	case $2 in
	yes) systemctl ${root:+--root "$root"} enable -q "$1" ;;
	no) systemctl ${root:+--root "$root"} disable -q "$1" ;;
	esac
	[ -z "$root" ] || return 0
	case $3 in
	yes | reload)
		case "$3 $pending " in
		"reload "*" $1 "*) systemctl reload-or-restart "$1" ;;
		*" $1 "*) systemctl restart "$1" ;;
		*) systemctl start "$1" ;;
		esac
		;;
	no) systemctl stop "$1" ;;
	esac
	done=$1
	kept=''
	for each in $pending; do [ "$each" = "$done" ] || kept="$kept $each"; done
	pending=$kept
}
image() { # COMMAND…: gives $archive to a program, once
	[ -z "$root" ] || return 0
	if [ ! -e "$archive.loaded" ]; then
		"$@" <"$archive"
		: >"$archive.loaded"
	fi
}
finish() {
	rm -rf "$cache/tree"
	[ -z "$root" ] || return 0
	if [ -n "$reload" ]; then systemctl daemon-reload; fi
	for each in $pending; do systemctl try-restart "$each"; done
	say "done"
}
