package berthapi_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// auditedImages checks as check does.
type auditedImages struct {
	fakeImages
	check func(ctx context.Context, repair bool, seen func(image.CheckUpdate)) (*image.CheckReport, error)
}

func (a *auditedImages) DiskUse(context.Context) (*image.DiskUse, error) {
	return nil, errs.Unsupported
}

func (a *auditedImages) Check(ctx context.Context, repair bool, seen func(image.CheckUpdate)) (*image.CheckReport, error) {
	return a.check(ctx, repair, seen)
}

func damageOf(path string) image.Damage {
	return image.Damage{Object: "file", Path: path, Problem: "its mode is 777", Images: []string{}, Containers: []string{}, Repaired: true, Repair: "mode 600 set"}
}

// TestCheckReportsAllDamage: a client gets each damaged object, whatever it misses of the progress.
func TestCheckReportsAllDamage(t *testing.T) {
	report := &image.CheckReport{Blobs: 1, Layers: 2, Bytes: 3, Damage: []image.Damage{}, Notes: []string{"a note"}, Unchecked: []string{"layer a: the disk is full"}, Quarantined: []image.Quarantined{
		{Dir: "/q/1", At: time.Unix(7, 0).UTC(), Objects: []string{"trash was a file"}},
	}}
	for i := range 100 {
		report.Damage = append(report.Damage, damageOf(string(rune('a'+i))))
	}
	api := &berthapi.Server{Jobs: func() []berthapi.Job { return nil }, Images: &auditedImages{check: func(_ context.Context, repair bool, seen func(image.CheckUpdate)) (*image.CheckReport, error) {
		if !repair {
			return nil, errs.State
		}
		for i := range report.Damage {
			for done := range int64(100) {
				seen(image.CheckUpdate{Progress: image.Progress{Stage: image.CheckReading, Done: done, Total: 100}})
			}
			seen(image.CheckUpdate{Damage: &report.Damage[i]})
		}
		seen(image.CheckUpdate{Progress: image.Progress{Stage: image.CheckComparing, Done: 9, Total: 9}})
		return report, nil
	}}}
	client := connect(t, api.Register).Berth
	var damage []image.Damage
	var last berthapi.Progress
	got, err := client.CheckImages(t.Context(), true, func(p berthapi.Progress) { last = p }, func(d image.Damage) { damage = append(damage, d) })
	if err != nil || !reflect.DeepEqual(got, report) || !reflect.DeepEqual(damage, report.Damage) {
		t.Errorf("%+v, %d damaged, %v", got, len(damage), err)
	}
	if want := (berthapi.Progress{Stage: image.CheckComparing, Done: 9, Total: 9}); last != want {
		t.Errorf("the last progress is %+v", last)
	}
	if _, err := client.CheckImages(t.Context(), false, nil, nil); !errors.Is(err, errs.State) {
		t.Errorf("an error: %v", err)
	}
}

// TestCheckEndsWithItsClient: Ctrl-C ends the check in the daemon.
func TestCheckEndsWithItsClient(t *testing.T) {
	ended := make(chan error, 1)
	api := &berthapi.Server{Jobs: func() []berthapi.Job { return nil }, Images: &auditedImages{check: func(ctx context.Context, _ bool, seen func(image.CheckUpdate)) (*image.CheckReport, error) {
		damage := damageOf("a")
		seen(image.CheckUpdate{Damage: &damage})
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil, context.Cause(ctx)
	}}}
	client := connect(t, api.Register).Berth
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := client.CheckImages(ctx, true, nil, func(image.Damage) { cancel() }); err == nil {
		t.Error("no error")
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the check ended with %v", err)
	}
}
