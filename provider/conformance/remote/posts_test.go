package remote

import (
	"errors"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestPostsAreCounted: an agent that claims that it has posted more work requests than there were
// ends the session, because a program would look for the others.
func TestPostsAreCounted(t *testing.T) {
	for _, n := range []int{-1, 2} {
		a := engines(0)
		a.Open = func(string, []string) (provider.Provider, error) {
			return miscounting{engine.New(nil), n}, nil
		}
		c := session(t, a)
		d := testkit.Must(c.Provider("engine", nil).Open(""))(t)
		pd := testkit.Must(d.AllocPD())(t)
		srq := testkit.Must(pd.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(t)
		if got, err := srq.PostRecv(make([]provider.RecvWR, 1)); got != 0 || !errors.Is(err, errFrame) {
			t.Errorf("%d of 1: %d, %v", n, got, err)
		}
		<-c.Done()
	}
}

// miscounting is a provider whose SRQs claim that they have posted n receives.
type miscounting struct {
	provider.Provider
	n int
}

type miscountingDevice struct {
	provider.Device
	n int
}

type miscountingPD struct {
	provider.PD
	n int
}

type miscountingSRQ struct {
	provider.SRQ
	n int
}

func (p miscounting) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	return miscountingDevice{d, p.n}, err
}

func (d miscountingDevice) AllocPD() (provider.PD, error) {
	pd, err := d.Device.AllocPD()
	return miscountingPD{pd, d.n}, err
}

func (pd miscountingPD) CreateSRQ(init provider.SRQInitAttr) (provider.SRQ, error) {
	s, err := pd.PD.CreateSRQ(init)
	return miscountingSRQ{s, pd.n}, err
}

func (s miscountingSRQ) PostRecv([]provider.RecvWR) (int, error) { return s.n, nil }
