package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/sys/sysns"
)

const (
	// checkTimeout bounds the CHECK of one attachment: its DEL waits for it.
	checkTimeout = 10 * time.Second
	// checkParallel bounds the CHECKs that run at once.
	checkParallel = 4
)

// Check implements network.Plugged. An attachment whose DEL has failed has its error as a fault. The order is that of namespaces and names.
func (n *Network) Check(ctx context.Context, sandboxes []string) ([]network.Checked, error) {
	var wanted []*record
	for _, rec := range n.records.All() {
		if len(sandboxes) == 0 || slices.Contains(sandboxes, rec.Attachment.SandboxID) {
			wanted = append(wanted, rec)
		}
	}
	for _, id := range sandboxes {
		if !slices.ContainsFunc(wanted, func(r *record) bool { return r.Attachment.SandboxID == id }) {
			return nil, fmt.Errorf("cannot check the network of sandbox %s: it is not attached: %w", id, errs.NotFound)
		}
	}
	return n.checkAll(ctx, wanted), nil
}

func (n *Network) checkAll(ctx context.Context, wanted []*record) []network.Checked {
	found := make([][]network.Checked, len(wanted))
	var g errgroup.Group
	g.SetLimit(checkParallel)
	for i, rec := range wanted {
		g.Go(func() error {
			found[i] = n.checkOne(ctx, rec)
			return nil
		})
	}
	_ = g.Wait() // each result has its own fault
	all := slices.Concat(found...)
	slices.SortFunc(all, func(a, b network.Checked) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.SandboxID, b.SandboxID), cmp.Compare(a.Interface, b.Interface))
	})
	return all
}

// checkOne checks a sandbox in each of its networks.
func (n *Network) checkOne(ctx context.Context, rec *record) []network.Checked {
	whole := network.Checked{SandboxID: rec.Attachment.SandboxID, Namespace: rec.Attachment.Namespace, Name: rec.Attachment.Name}
	// The call goes on when ctx ends, and then nobody reads what it finds.
	found := make(chan []network.Checked, 1)
	err := n.calls.Do(ctx, whole.SandboxID, "CNI CHECK", func() error {
		whole, all := whole, []network.Checked(nil)
		defer func() {
			if len(all) == 0 {
				all = []network.Checked{whole}
			}
			found <- all
		}()
		rec, err := n.records.Get(whole.SandboxID)
		switch {
		case err == nil && rec.Deleting && rec.Fault != "":
			whole.Fault = fmt.Errorf("it is being detached, and the last DEL has failed; it is repeated: %s", rec.Fault)
			return nil
		case errors.Is(err, errs.NotFound) || err == nil && rec.Deleting:
			whole.Skipped = "it is being detached"
			return nil
		case err == nil && n.resultOf(rec) == nil:
			whole.Skipped = "it is not attached yet"
			return nil
		case err == nil && n.cfg.Retired:
			whole.Skipped = "CNI plugins have attached it before the network changed, and only detach it"
			return nil
		case err != nil:
			return err
		}
		rt, err := runtimeConf(rec)
		if err != nil {
			return err
		}
		ns, err := sysns.OpenNetNS(rt.NetNS)
		if err != nil {
			return fmt.Errorf("the network namespace of the sandbox is gone: %w", err)
		}
		ns.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()
		for i, conf := range rec.confs() {
			one := whole
			one.Interface = linkName(i)
			n.checkNetwork(ctx, rec, conf, onNetwork(rt, i), &one)
			all = append(all, one)
		}
		return nil
	})
	if err != nil {
		whole.Fault = err
		return []network.Checked{whole}
	}
	return <-found
}

// checkNetwork runs CHECK with the configuration, the arguments and the result of ADD.
func (n *Network) checkNetwork(ctx context.Context, rec *record, conf []byte, rt *libcni.RuntimeConf, out *network.Checked) {
	list, err := libcni.NetworkConfFromBytes(conf)
	if err != nil {
		out.Fault = fmt.Errorf("cannot read the configuration that the sandbox was attached with: %w", err)
		return
	}
	out.Network = list.Name
	if list.DisableCheck {
		out.Skipped = "the configuration has disableCheck"
		return
	}
	if cached, err := n.libOf(rec).GetNetworkListCachedResult(list, rt); err == nil && cached == nil {
		out.Skipped = "the cache of results has no result of its ADD, which plugins need"
		return
	}
	err = n.libOf(rec).CheckNetworkList(ctx, list, rt)
	switch {
	case errors.Is(err, libcni.ErrorCheckNotSupp):
		out.Skipped = fmt.Sprintf("version %s of the configuration has no CHECK; 0.4.0 and later have", cmp.Or(list.CNIVersion, "0.1.0"))
	case err != nil:
		out.Fault = fmt.Errorf("CNI CHECK of network %q: %w; if it is gone, only ADD makes it again: recreate the pod", list.Name, withKind(ctx, err))
	}
}

// checkAdopted checks the attachments that an earlier process made, and keeps the faults for
// Info. It changes no attachment: the pods run, and what a plugin complains about may be meant.
func (n *Network) checkAdopted(ctx context.Context, adopted []*record) {
	var faults []string
	for _, c := range n.checkAll(ctx, adopted) {
		if c.Fault == nil || ctx.Err() != nil {
			continue
		}
		n.log.Warn("the network of a running pod is not as the CNI plugins made it; berth changes nothing, `berth net check` repeats the check",
			"sandbox", c.SandboxID, "pod", c.Namespace+"/"+c.Name, "error", c.Fault)
		faults = append(faults, fmt.Sprintf("%s/%s (%s): %v", c.Namespace, c.Name, c.SandboxID, c.Fault))
	}
	n.upkeep.setChecks(strings.Join(faults, "; "))
}
