package berthapi

import (
	"github.com/opencontainers/go-digest"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/berthrun/berth/internal/berthapi/berthpb"
	"github.com/berthrun/berth/internal/image"
)

func explanationToProto(e *image.Explanation) *berthpb.ExplainImageResponse {
	resp := &berthpb.ExplainImageResponse{Ref: e.Ref, ShortName: e.ShortName, Candidates: e.Candidates, Present: e.Present, Platform: e.Platform, Fault: validText(e.Fault)}
	for i := range e.Next {
		resp.Next = append(resp.Next, explanationToProto(&e.Next[i]))
	}
	for i := range e.Endpoints {
		at := &e.Endpoints[i]
		sent := &berthpb.Endpoint{
			Url: validText(at.URL), Mirror: at.Mirror, Source: validText(at.Source), Problem: validText(at.Problem), Credentials: validText(at.Credentials),
			Capabilities: at.Capabilities, Skipped: validText(at.Skipped), Health: validText(at.Health),
		}
		for _, text := range at.TLS {
			sent.Tls = append(sent.Tls, validText(text))
		}
		if a := at.Attempt; a != nil {
			sent.Attempt = &berthpb.Attempt{Took: durationpb.New(a.Took), Digest: a.Digest.String(), MediaType: validText(a.MediaType), Fault: validText(a.Fault)}
		}
		resp.Endpoints = append(resp.Endpoints, sent)
	}
	resp.Admission = admissionToProto(e.Admission)
	if r := e.Referrers; r != nil {
		resp.Referrers = &berthpb.Referrers{Of: r.Of.String(), LeftOut: int64(r.LeftOut), Fault: validText(r.Fault)}
		for _, one := range r.List {
			resp.Referrers.List = append(resp.Referrers.List, &berthpb.Referrer{ArtifactType: validText(one.ArtifactType), Digest: one.Digest.String(), Size: one.Size})
		}
	}
	return resp
}

func admissionToProto(a *image.Admission) *berthpb.Admission {
	if a == nil {
		return nil
	}
	sent := &berthpb.Admission{}
	if p := a.Policy; p != nil {
		sent.Policy = &berthpb.PolicyDecision{File: p.File, Fault: validText(p.Fault), Scope: p.Scope}
		for i := range p.Requirements {
			r := &p.Requirements[i]
			sent.Policy.Requirements = append(sent.Policy.Requirements, &berthpb.PolicyRequirement{
				Type: r.Type, Means: r.Means, Keys: validTexts(r.Keys), Certificate: validText(r.Certificate), Logs: validTexts(r.Logs),
				Identity: validText(r.Identity), Fault: validText(r.Fault),
			})
		}
	}
	if v := a.Verifiers; v != nil {
		sent.Verifiers = &berthpb.Verifiers{Dir: v.Dir, Programs: validTexts(v.Programs), Fault: validText(v.Fault)}
	}
	if t := a.Trial; t != nil {
		sent.Trial = &berthpb.AdmissionTrial{Digest: t.Digest.String(), Accepted: t.Accepted, Fault: validText(t.Fault)}
		for _, s := range t.Signatures {
			sent.Trial.Signatures = append(sent.Trial.Signatures, &berthpb.SignatureTrial{Place: validText(s.Place), Fault: validText(s.Fault)})
		}
	}
	return sent
}

// validTexts is validText for each of a list.
func validTexts(all []string) []string {
	var valid []string
	for _, text := range all {
		valid = append(valid, validText(text))
	}
	return valid
}

func admissionFromProto(sent *berthpb.Admission) *image.Admission {
	if sent == nil {
		return nil
	}
	a := &image.Admission{}
	if p := sent.GetPolicy(); p != nil {
		a.Policy = &image.PolicyDecision{File: p.GetFile(), Fault: p.GetFault(), Scope: p.GetScope()}
		for _, r := range p.GetRequirements() {
			a.Policy.Requirements = append(a.Policy.Requirements, image.Requirement{
				Type: r.GetType(), Means: r.GetMeans(), Keys: r.GetKeys(), Certificate: r.GetCertificate(), Logs: r.GetLogs(),
				Identity: r.GetIdentity(), Fault: r.GetFault(),
			})
		}
	}
	if v := sent.GetVerifiers(); v != nil {
		a.Verifiers = &image.Verifiers{Dir: v.GetDir(), Programs: list(v.GetPrograms()), Fault: v.GetFault()}
	}
	if t := sent.GetTrial(); t != nil {
		a.Trial = &image.AdmissionTrial{Digest: digest.Digest(t.GetDigest()), Accepted: t.GetAccepted(), Fault: t.GetFault()}
		for _, s := range t.GetSignatures() {
			a.Trial.Signatures = append(a.Trial.Signatures, image.SignatureTrial{Place: s.GetPlace(), Fault: s.GetFault()})
		}
	}
	return a
}

func explanationFromProto(resp *berthpb.ExplainImageResponse) *image.Explanation {
	e := &image.Explanation{Ref: resp.GetRef(), ShortName: resp.GetShortName(), Candidates: resp.GetCandidates(), Present: resp.GetPresent(), Platform: resp.GetPlatform(), Fault: resp.GetFault()}
	for _, next := range resp.GetNext() {
		e.Next = append(e.Next, *explanationFromProto(next))
	}
	for _, at := range resp.GetEndpoints() {
		got := image.Endpoint{
			URL: at.GetUrl(), Mirror: at.GetMirror(), Source: at.GetSource(), Problem: at.GetProblem(), Credentials: at.GetCredentials(),
			TLS: at.GetTls(), Capabilities: at.GetCapabilities(), Skipped: at.GetSkipped(), Health: at.GetHealth(),
		}
		if a := at.GetAttempt(); a != nil {
			got.Attempt = &image.Attempt{Took: a.GetTook().AsDuration(), Digest: digest.Digest(a.GetDigest()), MediaType: a.GetMediaType(), Fault: a.GetFault()}
		}
		e.Endpoints = append(e.Endpoints, got)
	}
	e.Admission = admissionFromProto(resp.GetAdmission())
	if r := resp.GetReferrers(); r != nil {
		e.Referrers = &image.Referrers{Of: digest.Digest(r.GetOf()), List: []image.Referrer{}, LeftOut: int(r.GetLeftOut()), Fault: r.GetFault()}
		for _, one := range r.GetList() {
			e.Referrers.List = append(e.Referrers.List, image.Referrer{ArtifactType: one.GetArtifactType(), Digest: digest.Digest(one.GetDigest()), Size: one.GetSize()})
		}
	}
	return e
}
