# What an installation, an upgrade and a removal do with berth's services. It is a part of the
# scripts of all packages, and of install.sh. Shells: dash, bash and busybox.

berth_config=${BERTH_CONFIG:-/etc/berth/berth.toml}
berth_kept_unit=/run/systemd/system/berth-supervisor.service

berth_has_systemd() { [ -d /run/systemd/system ] && command -v systemctl > /dev/null 2>&1; }
berth_has_openrc() { ! berth_has_systemd && command -v rc-service > /dev/null 2>&1; }

# Pods have a record each, on a tmpfs that ends with their processes.
berth_has_pods() { [ -n "$(ls -A /run/berth/pods/sandboxes 2> /dev/null)" ]; }

berth_warn() { echo "berth: $*" >&2; }

# Two runtimes on one node that use the same CNI configuration would release each other's addresses,
# and only one can serve NRI plugins. So the start is the administrator's decision.
berth_installed() {
  berth_renew_supervisor
  if berth_has_systemd; then
    echo "berth is installed. To start it: systemctl enable --now berth-supervisor berth"
  elif berth_has_openrc; then
    echo "berth is installed. To start it: rc-update add berth-supervisor && rc-update add berth && rc-service berth start"
  else
    echo "berth is installed. To start it: berth serve --config $berth_config"
  fi
}

# The keeper tests the new supervisor before it replaces the old one. A supervisor may also run before
# an installation: it outlives the removal of the package while there are pods.
berth_renew_supervisor() {
  if berth_has_systemd; then
    rm -f "$berth_kept_unit"
    systemctl daemon-reload || berth_warn "systemctl daemon-reload failed"
    systemctl --quiet is-active berth-supervisor.service || return 0
    systemctl reload berth-supervisor.service || berth_warn "the supervisor does not reload: see systemctl status berth-supervisor"
  elif berth_has_openrc; then
    rc-service --quiet --ifstarted berth-supervisor reload || berth_warn "the supervisor does not reload"
  fi
}

# Containers run on, and the new daemon adopts them.
berth_upgraded() {
  berth_renew_supervisor
  if berth_has_systemd; then
    systemctl --quiet is-active berth.service || return 0
    berth_config_is_good || return 0
    # The package manager does not wait for a daemon that first stops the pods of another engine.
    timeout 120 systemctl restart berth.service || berth_warn "the daemon is not ready: see systemctl status berth"
  elif berth_has_openrc; then
    rc-service --quiet --ifstarted berth status > /dev/null 2>&1 || return 0
    berth_config_is_good || return 0
    rc-service --ifstarted berth restart || berth_warn "the daemon does not restart"
  fi
}

# The old daemon runs on if the new one would refuse the configuration.
berth_config_is_good() {
  [ ! -e "$berth_config" ] || berth config check "$berth_config" > /dev/null || {
    berth_warn "the daemon was not restarted: correct $berth_config, then restart berth"
    return 1
  }
}

# Pods outlive the package. While there are some, their supervisor stays: it has their output and
# exit codes, and a berth that is installed again takes over from it.
berth_removing() {
  if berth_has_systemd; then
    systemctl --quiet disable berth-cluster.service berth.service berth-supervisor.service || :
    systemctl stop berth.service || berth_warn "the daemon does not stop"
    if berth_has_pods; then
      berth_keep_unit
      berth_warn "pods run on, and so does their supervisor. Install berth again to manage them"
    else
      systemctl stop berth-supervisor.service || berth_warn "the supervisor does not stop"
    fi
  elif berth_has_openrc; then
    for service in berth berth-supervisor; do rc-update --quiet del "$service" > /dev/null 2>&1 || :; done
    rc-service --quiet --ifstarted berth stop || berth_warn "the daemon does not stop"
    if berth_has_pods; then
      berth_warn "pods run on, and so does their supervisor. Install berth again to manage them"
    else
      rc-service --quiet --ifstarted berth-supervisor stop || berth_warn "the supervisor does not stop"
    fi
  fi
}

# systemd holds descriptors for the supervisor, by its unit. When a reload no longer finds the unit, systemd closes them,
# and version 255 (Ubuntu 24.04) crashes over that, and the machine with it. So the unit stays until the next boot.
berth_keep_unit() {
  unit=$(systemctl show --property FragmentPath --value berth-supervisor.service)
  case $unit in
    "" | "$berth_kept_unit") ;;
    *) cp "$unit" "$berth_kept_unit" || berth_warn "the unit of the supervisor cannot be kept in ${berth_kept_unit%/*}" ;;
  esac
}

berth_removed() {
  berth_has_systemd || return 0
  systemctl daemon-reload || berth_warn "systemctl daemon-reload failed"
}

# Images, layers and records are removed; pods that run need them. What `berth node` needs for a
# reset stays, and so do the volumes and nodes that people keep data in.
berth_purge() {
  if berth_has_pods; then
    berth_warn "pods run, so /run/berth and /var/lib/berth stay. Remove them after the pods have ended, or after a reboot"
    return 0
  fi
  if [ -d /var/lib/berth ]; then
    for entry in /var/lib/berth/* /var/lib/berth/.[!.]*; do
      [ "$entry" = /var/lib/berth/node ] || [ ! -e "$entry" ] || rm -rf --one-file-system "$entry"
    done
    rmdir /var/lib/berth 2> /dev/null || berth_warn "/var/lib/berth/node stays: it has what berth node reset needs"
  fi
  # On a host whose /run is not a tmpfs, berth has mounted one.
  ! mountpoint -q /run/berth || umount /run/berth || :
  [ ! -d /run/berth ] || rm -rf --one-file-system /run/berth
  for kept in /var/lib/berth-claims /var/lib/berth-volumes /var/lib/berth-cluster; do
    [ ! -d "$kept" ] || berth_warn "$kept stays: it has data of pods or clusters"
  done
}
