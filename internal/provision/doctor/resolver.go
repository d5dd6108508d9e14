package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

const (
	hostResolvConf = "/etc/resolv.conf"
	// resolved is the file of systemd-resolved that names real servers: /etc/resolv.conf names a stub on loopback then.
	resolved = "/run/systemd/resolve/resolv.conf"
)

// resolver checks the file that pods get their name servers from.
func resolver(_ context.Context, m *Machine, r *doctor.Report) error {
	k, _ := m.kubelet() // the check of the kubelet reports its error
	file := cmp.Or(k.ResolvConf.Text, hostResolvConf)
	data, err := read(m.host, file)
	if errors.Is(err, errs.NotFound) {
		m.noResolvConf(r, file)
		return nil
	}
	if err != nil {
		return err
	}
	if !k.There() && provision.Exists(m.host.Files(), resolved) {
		return nil // berth pod run reads it
	}
	servers := 0
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		servers++
		if !strings.HasPrefix(words[1], "127.") && words[1] != "::1" {
			continue
		}
		said, todo := fmt.Sprintf("pods would ask %s (%s), which is themselves", words[1], file), "a name server in "+file+" that pods reach, or dnsConfig in each pod"
		if k.There() {
			said, todo = said+"; CoreDNS ends with \"Loop detected\"", "resolvConf: "+resolved+" in "+orDefault(k.Config)
		}
		r.Add(warning, file, said, todo)
		return nil
	}
	if servers == 0 {
		r.Add(warning, file, file+" names no name server: pods that take theirs from the node resolve no name, and the node may pull no image", "a line `nameserver ADDRESS` in "+file)
	}
	return nil
}

// noResolvConf reports a file that is missing, or a link to one: systemd-resolved has ended, or was removed.
func (m *Machine) noResolvConf(r *doctor.Report, file string) {
	k, _ := m.kubelet() // the check of the kubelet reports its error
	if from := k.ResolvConf.From; k.ResolvConf.Text != "" {
		r.Add(problem, file, fmt.Sprintf("resolvConf (%s) names %s, which is not there: the kubelet starts no pod that takes its name servers from the node", from, file),
			"correct resolvConf in "+from+" and restart the kubelet")
		return
	}
	said := file + " is not there"
	if info, err := m.host.Files().Stat(file); err == nil && info.Target != "" {
		said = fmt.Sprintf("%s is a link to %s, which is not there", file, info.Target)
	}
	level, means := warning, "pods that take their name servers from the node have none, and the node may pull no image"
	if k.There() {
		level, means = problem, "the kubelet starts no pod that takes its name servers from the node, and the node may pull no image"
	}
	r.Add(level, file, said+": "+means, "start what writes it (systemctl start systemd-resolved), or write one with a line `nameserver ADDRESS`")
}
