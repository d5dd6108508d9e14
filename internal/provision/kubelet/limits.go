package kubelet

import (
	"maps"
	"strconv"
	"strings"
)

// limitFields are those of a KubeletConfiguration that Limits has.
type limitFields struct {
	ImageEndpoint  string            `json:"imageServiceEndpoint"`
	PodCIDR        string            `json:"podCIDR"`
	MaxPods        *int64            `json:"maxPods"`
	PodPIDs        *int64            `json:"podPidsLimit"`
	SeccompDefault *bool             `json:"seccompDefault"`
	ProtectKernel  *bool             `json:"protectKernelDefaults"`
	Eviction       map[string]string `json:"evictionHard"`
	MergeEviction  *bool             `json:"mergeDefaultEvictionSettings"`
	UserNamespaces struct {
		IDsPerPod *int64 `json:"idsPerPod"`
	} `json:"userNamespaces"`
}

// read takes over what a file sets.
func (l *Limits) read(f limitFields, file string) {
	set(&l.ImageEndpoint, f.ImageEndpoint, file)
	set(&l.PodCIDR, f.PodCIDR, file)
	set(&l.MaxPods, number(f.MaxPods), file)
	set(&l.PodPIDs, number(f.PodPIDs), file)
	set(&l.SeccompDefault, truth(f.SeccompDefault), file)
	set(&l.ProtectKernel, truth(f.ProtectKernel), file)
	set(&l.IDsPerPod, number(f.UserNamespaces.IDsPerPod), file)
	if f.Eviction != nil {
		// The kubelet merges the keys of its drop-ins.
		all := map[string]string{}
		maps.Copy(all, l.Eviction)
		maps.Copy(all, f.Eviction)
		l.Eviction, l.EvictionFrom = all, file
	}
	if f.MergeEviction != nil {
		l.MergeEviction = *f.MergeEviction
	}
}

func number(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

func truth(b *bool) string {
	if b == nil {
		return ""
	}
	return strconv.FormatBool(*b)
}

// Int is the value as a number, otherwise if it is none.
func (v Value) Int(otherwise int64) int64 {
	if n, err := strconv.ParseInt(v.Text, 10, 64); err == nil {
		return n
	}
	return otherwise
}

// On reports whether the value is a switch that is on.
func (v Value) On() bool {
	on, err := strconv.ParseBool(v.Text)
	return err == nil && on
}

// evictionOption reads --eviction-hard: "memory.available<100Mi,nodefs.available<10%".
func evictionOption(text string) map[string]string {
	all := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		if signal, quantity, ok := strings.Cut(strings.TrimSpace(part), "<"); ok {
			all[signal] = quantity
		}
	}
	return all
}
