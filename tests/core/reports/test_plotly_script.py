"""The part of Plotly's script that pages have: each module that runs is in it, and the others are not."""

import re

import pytest
from plotly.offline import get_plotlyjs

from contextwise.reports.plotly_script import TRACES, plotly_script, with_traces

BUNDLE = (
    '/* license */"use strict";var Plotly=(()=>{var E=(e,t)=>()=>(e&&(t=e(e=0)),t);'
    "var C=(e,t)=>()=>{try{return t||e((t={exports:{}}).exports,t),t.exports}catch(r){throw r}};"
    "var core=C((a,b)=>{b.exports={register(){},draw:tools()}});"
    "var tools=C((a,b)=>{b.exports=1});"
    'var bar=C((a,b)=>{"use strict";b.exports=barType()});'
    'var barType=C((a,b)=>{b.exports={moduleType:"trace",name:"bar",help:colours}});'
    "function colours(){}var scales=E(()=>{colours()});"
    'var map=C((a,b)=>{b.exports={moduleType:"trace",name:"map",plot:(mapStart(),1)}});'
    "var mapLibrary=C((a,b)=>{b.exports=2});"
    "var mapStart=E(()=>{mapLibrary()});"
    "var all=C((a,b)=>{var c=core();c.register([bar(),map()]);b.exports=c});return all();})();/* end */"
)


def test_modules_that_no_kept_module_calls_are_left_out() -> None:
    script = with_traces(BUNDLE, ("bar",))
    assert script is not None
    modules = re.findall(r"var (\w+)=[CE]\(", script)
    assert modules == ["core", "tools", "bar", "barType", "scales", "all"]
    assert "c.register([bar()]);" in script and "map" not in script
    assert script.startswith("/* license */") and script.endswith("return all();})();/* end */")
    assert with_traces(BUNDLE, ("bar", "map")) == BUNDLE  # a CommonJS module calls an ES module by its start


@pytest.mark.parametrize(
    "bundle", ["", "var Plotly={};", BUNDLE.replace(".register([", ".add(["), BUNDLE.replace('name:"bar"', 'name:"b"')]
)
def test_a_bundle_of_another_structure_is_not_changed(bundle: str) -> None:
    assert with_traces(bundle, ("bar",)) is None


def test_the_script_of_a_page_is_a_quarter_of_the_installed_one() -> None:
    script = plotly_script()
    assert len(script) < 1.3e6 < 4e6 < len(get_plotlyjs())
    assert "Licensed under the MIT license" in script
    for trace in ("scatter", *TRACES):
        assert f'moduleType:"trace",name:"{trace}"' in script
    assert 'moduleType:"trace",name:"scattermap"' in get_plotlyjs()
    assert 'moduleType:"trace",name:"scattermap"' not in script
