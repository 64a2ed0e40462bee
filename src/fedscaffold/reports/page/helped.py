"""Who is served better by the common model than by one of their own."""

from collections.abc import Sequence

from fedscaffold.reports.page import drawings, elements

MAX_SHOWN = 30


def helped_figure(compared: Sequence[tuple[str, float, float]], *, who: str, loss_name: str) -> str:
    """Pairs of losses on rows left out, of the common model and of the own one, by name.

    Parameters
    ----------
    compared
        Name, loss of the common model, loss of the own one.
    who
        What has these names: "clients" or "sites".
    loss_name
        Name of the loss.
    """
    ordered = sorted(compared, key=lambda row: row[2] - row[1])
    helped = sum(own > common for _, common, own in ordered)
    shown = ordered
    if len(shown) > MAX_SHOWN:
        shown = [*shown[: MAX_SHOWN // 2], *shown[-(MAX_SHOWN // 2) :]]
    svg = drawings.pairs(
        [name for name, _, _ in shown],
        [common for _, common, _ in shown],
        [own for _, _, own in shown],
        title=f"Loss on rows left out, together and alone; {helped} of {len(ordered)} {who} are helped",
        label=f"{loss_name} on rows left out",
    )
    ends = f" The {MAX_SHOWN // 2} that lose most and gain most are shown." if len(shown) < len(ordered) else ""
    caption = "From most hurt (top) to most helped by the common model; further left is better."
    legend = [("dot-common", f"together, with all {who}"), ("dot-local", "alone, on its own rows")]
    return elements.figure(svg, legend, caption + ends)
