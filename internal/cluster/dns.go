package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// corednsConfig is the ConfigMap of the cluster's DNS, which kubeadm writes.
const corednsConfig = "coredns"

// preferUDP has the cluster's DNS ask the nodes' name servers by UDP, also for pods that ask
// by TCP: that of podman on Debian 12 listens on UDP only, and pods would be told that the server
// failed. What is too long for UDP is asked again by TCP.
func (m *creation) preferUDP(ctx context.Context) error {
	data, err := m.api.Kept(ctx, corednsConfig)
	if errors.Is(err, errs.NotFound) {
		return nil // a description may leave CoreDNS out
	}
	if err != nil {
		return err
	}
	text := withPreferUDP(data["Corefile"])
	if text == data["Corefile"] {
		return nil
	}
	data["Corefile"] = text
	if err := m.api.Keep(ctx, corednsConfig, data); err != nil {
		return fmt.Errorf("cannot have CoreDNS prefer UDP: %w", err)
	}
	return nil
}

// withPreferUDP is a Corefile whose block for the nodes' name servers has the option.
func withPreferUDP(corefile string) string {
	const block = "forward . /etc/resolv.conf {\n"
	before, after, found := strings.Cut(corefile, block)
	if !found || strings.Contains(after, "prefer_udp") {
		return corefile
	}
	return before + block + "       prefer_udp\n" + after
}
