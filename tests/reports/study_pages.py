"""Pages about studies and sites, with names from outside, withheld counts and gaps."""

from dataclasses import replace

from fedscaffold.reports.page import CoefficientRow, CoefficientTable, site_page, study_page
from fedscaffold.reports.page.study_content import (
    HistoryPoint,
    Judgement,
    PhaseTraffic,
    SentMessage,
    SiteContent,
    StudyContent,
)

COEFFICIENTS = CoefficientTable(
    rows=[
        CoefficientRow(name="age", cells=("1.5", "0.2"), effect=1.5, low=1.1, high=1.9),
        CoefficientRow(name="<dose>", cells=("-0.5", "0.4"), effect=-0.5, low=-1.3, high=0.3),
        CoefficientRow(name="intercept", cells=("0.1", "0.1"), effect=float("nan"), low=0.0, high=0.0),
    ],
    columns=("coefficient", "standard error"),
    scale="log odds per standard deviation",
)
BONN = Judgement(
    site="<Bonn>", rows=120, left_out=24, together=0.41, alone=0.52, auc=0.83,
    calibration=[(0.2, 0.1, 12), (0.8, 0.9, 12)], confusion=[[10, 0], [None, None]],
)  # fmt: skip
TRAFFIC = [
    PhaseTraffic(phase="greet", messages=1, numbers=0, bytes=412),
    PhaseTraffic(phase="sums", messages=9, numbers=5_000, bytes=40_800),
]
STUDY = StudyContent(
    title="A study of <ill>",
    summary="Three sites & one model.",
    request=[("target", "<ill>")],
    agreed=[("coefficients", "3")],
    columns=[("age", "number, centre 50, scale 10", "refused"), ("<ward>", "2 indicators", "a value of its own")],
    certificate=[("relative", "at most 1e-9")],
    provenance=[("seed", "0")],
    classes=("no", "yes"),
    loss_name="negative log-likelihood",
    coefficients=COEFFICIENTS,
    history=[
        HistoryPoint(exchange=0, relative=1.0, standard_errors=None, certified=False, method="the start"),
        HistoryPoint(exchange=6, relative=0.02, standard_errors=None, certified=False, method="Scaffold"),
        HistoryPoint(exchange=8, relative=0.01, standard_errors=0.7, certified=True, method="Newton"),
        HistoryPoint(exchange=9, relative=1e-12, standard_errors=1e-11, certified=True, method="Newton"),
    ],
    tolerance=0.05,
    in_standard_errors=True,
    decisions=["Scaffold ran 3 rounds.", "It then closed."],
    sites=[BONN, replace(BONN, site="Ulm", alone=0.3), Judgement(site="tiny", rows=3)],
    evaluated=0.2,
    traffic={"<Bonn>": TRAFFIC, "Ulm": TRAFFIC, "tiny": TRAFFIC[:1]},
    promised=["At most d² + 2d numbers."],
)
MANY = [replace(BONN, site=f"a site with a long name {k}", rows=10 + k, alone=0.4 + k / 1000) for k in range(60)]
SITE = SiteContent(
    title="<Bonn> in the study pilot",
    summary="Ten messages left this site.",
    facts=[("study", "pilot & co")],
    classes=("no", "yes"),
    loss_name="negative log-likelihood",
    judgement=BONN,
    coefficients=COEFFICIENTS,
    traffic=TRAFFIC,
    messages=[
        SentMessage(
            time="2026-01-01T00:00:00Z", phase="greet", bytes=412, content='{"columns": "<age>"}', vectors=[]
        ),
        SentMessage(time="", phase="sums", bytes=4_080, content="{}", vectors=[("hessian", 500, "ab" * 32)]),
    ],
)
STUDY_PAGES = {
    "study": study_page(STUDY),
    "study-many": study_page(replace(STUDY, sites=MANY, traffic={one.site: TRAFFIC for one in MANY})),
    "study-plain": study_page(replace(STUDY, coefficients=None, evaluated=0.0, history=[], classes=())),
    "site": site_page(SITE),
}
