"""A slider and what it says."""

import streamlit as st

st.title("Zoo")
st.write(st.slider("animals", 1, 100, 7) * 2)
